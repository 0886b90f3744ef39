-- Settling: only the holder of a claim is heard; what it reports takes hold whole.

-- Completed and cancelled work is forgotten when it was kept long enough.
local function end_item(step, lane, user, item_id, item, move, task)
  if move == 'bury' then
    bury(step, lane, user, item_id, item)
    return
  end
  lane.ended[#lane.ended + 1] = item.redis_message_id
  item.redis_message_id = nil
  if move == 'complete' then
    item.status, item.completed_at = 'completed', step.now
  else
    item.status, item.cancelled_at, item.error = 'cancelled', step.now, 'cancelled'
  end
  local expiry = step.now + step.request.retention_ms
  redis.call('ZADD', step.prefix .. ':expiry', expiry, user .. ':' .. (task or '') .. ':' .. item_id)
  expect(step, expiry)
end

-- A message that must wait lets the others of an unordered lane pass; in an ordered lane it keeps its place.
local function wait_again(step, lane, user, item_id, item, delay)
  item.status = 'waiting'
  if delay == 0 or lane.ordered then
    hand_back(lane, item.redis_message_id)
    return
  end
  local body = withdraw(step, lane, item)
  if body then
    delay_item(step, user, item_id, item, body, step.now + delay)
  end
end

local function settle(step, settlement)
  local user, item_id, claim_id, task, move, attempt, delay, problem, follow_ups = unpack(settlement, 1, 9)
  local item = held_item(step, user, item_id, claim_id)
  if not item then
    return false
  end
  local lane = lane_of(step, item.lane)
  lane.running = math.max(0, lane.running - 1)
  step.unleased[#step.unleased + 1] = reference(user, item_id)
  item.claim_id, item.error = nil, problem
  item.attempts = item.attempts + (attempt and 1 or 0)
  local rest = lane.min_idle
  if move == 'retry' or move == 'release' then
    wait_again(step, lane, user, item_id, item, delay)
    rest = math.max(rest, lane.ordered and delay or 0)
  else
    end_item(step, lane, user, item_id, item, move, task)
  end
  write_item(step, user, item_id, item)
  if rest > 0 then
    lane.rest = math.max(lane.rest, step.now + rest)
  end
  if move == 'complete' then
    insert_all(step, follow_ups)
  end
  return true
end

local function settle_call(_, arguments)
  local step = open_step(arguments)
  local applied = {}
  for index, settlement in ipairs(step.request.settlements) do
    applied[index] = settle(step, settlement)
  end
  finish(step)
  tell_horizon(step)
  return cmsgpack.pack({ step.now, applied })
end

redis.register_function({ function_name = LIBRARY .. '_settle', callback = settle_call, flags = { 'allow-oom' } })
