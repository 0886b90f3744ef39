-- Settling: only the holder of a claim is heard; what it reports takes hold whole.
--
-- A row has user, item id, claim id, lane, move, whether it was an attempt, delay, error, follow-ups.

local ENDS = { complete = 'completed', cancel = 'cancelled', bury = 'failed' }

-- A message that must wait lets the others of an unordered lane pass; in an ordered lane it keeps its place.
local function wait_again(step, lane, item, row)
  local user, item_id, delay, problem = row[1], row[2], row[7], row[8]
  local body = delay > 0 and not lane.ordered and body_of(step, user, item_id, item)
  if row[6] or problem then
    note_run(step, user, item_id, item, row[6] and 'retry' or 'handed_back', problem)
  end
  item.status, item.run, item.note = 'waiting', '', note_error(problem)
  if body then
    item.body, item.rare.due = body, step.now + delay
    withdraw(lane, item)
    settle_in(step, user, item_id, item)
  else
    wait_from_now(step, item)
    hand_back(lane, item.entry)
  end
  watch_deadline(step, user, item_id, item)
end

local function end_claim(step, item, row)
  local user, item_id, move, delay = row[1], row[2], row[5], row[7]
  local lane = lane_of(step, row[4])
  local waits = move == 'retry' or move == 'release'
  end_run(step, lane, math.max(lane.min_idle, waits and lane.ordered and delay or 0))
  item.claim_id = ''
  item.attempts = item.attempts + (row[6] and 1 or 0)
  if item.rare.cancel_requested and move ~= 'complete' then
    end_item(step, user, item_id, item, 'cancelled', row[8])
  elseif waits then
    wait_again(step, lane, item, row)
    write_item(step, user, item_id, item)
  else
    end_item(step, user, item_id, item, ENDS[move], row[8])
  end
end

-- The answer is one word, and what is wrong with the follow-ups.
local function settle(step, row)
  local user, item_id, move, follow_ups = row[1], row[2], row[5], row[9]
  local item = held_item(step, user, item_id, row[3])
  if not item then
    return 'stale'
  end
  local parent = unknown_parent(step, follow_ups)
  if parent then
    return 'rejected', parent
  end
  step.unleased[#step.unleased + 1] = reference(user, item_id)
  if move == 'lose' then
    lose(step, user, item_id, item)
  else
    end_claim(step, item, row)
  end
  if move == 'complete' and #follow_ups > 0 then
    fetch_messages(step, follow_ups)
    insert_all(step, follow_ups)
  end
  return 'applied'
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
  local states, unknown = {}, {}
  local names = lanes_of(step.request.settlements)
  fetch_rows(step, step.request.settlements)
  fetch_lanes(step, names)
  fetch_scopes(step, names)
  for index, row in ipairs(step.request.settlements) do
    local state, parent = settle(step, row)
    states[index] = state
    if parent then
      unknown[#unknown + 1] = { index - 1, parent }
    end
  end
  finish(step)
  tell_horizon(step)
  return cmsgpack.pack({ step.now, states, unknown })
end

redis.register_function({ function_name = LIBRARY .. '_settle', callback = settle_call, flags = { 'allow-oom' } })
