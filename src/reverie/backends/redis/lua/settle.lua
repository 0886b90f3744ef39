-- Settling: only the holder of a claim is heard; what it reports takes hold whole.

local ENDS = {
  complete = { 'completed', '"completed_at":%d,' },
  cancel = { 'cancelled', '"cancelled_at":%d,' },
}

-- Completed and cancelled work is forgotten when it was kept long enough.
local function end_item(step, lane, item, row)
  local user, item_id, task, move, problem = row[1], row[2], row[5], row[6], row[9]
  if move == 'bury' then
    bury(step, lane, user, item_id, item, problem)
    return
  end
  withdraw(lane, item)
  local status, note = unpack(ENDS[move])
  item.status = status
  item.note = string.format(note, step.now) .. note_error(move == 'cancel' and 'cancelled' or problem)
  local expiry = step.now + step.request.retention_ms
  step.expiring[#step.expiring + 1] = expiry
  step.expiring[#step.expiring + 1] = user .. ':' .. (task or '') .. ':' .. item_id
  expect(step, expiry)
end

-- A message that must wait lets the others of an unordered lane pass; in an ordered lane it keeps its place.
local function wait_again(step, lane, item, row)
  local user, item_id, delay, problem = row[1], row[2], row[8], row[9]
  item.status, item.note = 'waiting', note_error(problem)
  local body = delay > 0 and not lane.ordered and body_in_lane(lane.key, item.entry)
  if body then
    delay_item(step, user, item_id, body, step.now + delay, details_of(item).seq)
    withdraw(lane, item)
  else
    hand_back(lane, item.entry)
  end
end

-- A row has user, item id, claim id, lane, task, move, whether it was an attempt, delay, error, follow-ups.
local function settle(step, row)
  local user, item_id, move = row[1], row[2], row[6]
  local item = held_item(step, user, item_id, row[3])
  if not item then
    return false
  end
  local lane = lane_of(step, row[4])
  lane.running = math.max(0, lane.running - 1)
  step.unleased[#step.unleased + 1] = reference(user, item_id)
  item.claim_id = ''
  item.attempts = item.attempts + (row[7] and 1 or 0)
  local rest = lane.min_idle
  if move == 'retry' or move == 'release' then
    wait_again(step, lane, item, row)
    rest = math.max(rest, lane.ordered and row[8] or 0)
  else
    end_item(step, lane, item, row)
  end
  write_item(step, user, item_id, item)
  if rest > 0 then
    lane.rest = math.max(lane.rest, step.now + rest)
  end
  if move == 'complete' then
    insert_all(step, row[10])
  end
  return true
end

-- The lanes of all rows, each once.
local function lanes_of(rows)
  local names, seen = {}, {}
  for _, row in ipairs(rows) do
    if not seen[row[4]] then
      seen[row[4]] = true
      names[#names + 1] = row[4]
    end
  end
  return names
end

local function settle_call(_, arguments)
  local step = open_step(arguments)
  local applied = {}
  fetch_rows(step, step.request.settlements)
  fetch_lanes(step, lanes_of(step.request.settlements))
  for index, settlement in ipairs(step.request.settlements) do
    applied[index] = settle(step, settlement)
  end
  finish(step)
  tell_horizon(step)
  return cmsgpack.pack({ step.now, applied })
end

redis.register_function({ function_name = LIBRARY .. '_settle', callback = settle_call, flags = { 'allow-oom' } })
