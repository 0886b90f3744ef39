-- Advancing: what the passing of time asks for, at most `limit` of each kind.

local function fallen_due(step, name)
  return redis.call('ZRANGE', step.prefix .. ':' .. name, '-inf', step.now, 'BYSCORE', 'LIMIT', 0, step.request.limit)
end

-- Messages that came due take their place at the end of their lane.
local function stage(step)
  local members = fallen_due(step, 'due')
  for _, member in ipairs(members) do
    local name = string.match(member, '^%d+:(.*)$')
    local user, item_id = split_reference(name)
    local item = read_item(step, user, item_id)
    local body = redis.call('HGET', step.prefix .. ':delayed', name)
    if item and body then
      item.entry = place(lane_of(step, details_of(item).lane), item_id, body)
      write_item(step, user, item_id, item)
    end
    redis.call('HDEL', step.prefix .. ':delayed', name)
    redis.call('ZREM', step.prefix .. ':due', member)
  end
  return #members
end

local function end_rests(step)
  local names = fallen_due(step, 'resting')
  for _, name in ipairs(names) do
    local lane = lane_of(step, name)
    lane.rest, lane.known_rest = 0, 0
    redis.call('ZREM', step.prefix .. ':resting', name)
  end
  return #names
end

-- A claim that ended without an outcome is one loss; after too many its message is buried.
local function reap(step)
  local lost = fallen_due(step, 'leases')
  for _, name in ipairs(lost) do
    local user, item_id = split_reference(name)
    local item = read_item(step, user, item_id)
    step.unleased[#step.unleased + 1] = name
    if item and item.claim_id ~= '' then
      local lane = lane_of(step, details_of(item).lane)
      lane.running = math.max(0, lane.running - 1)
      if lane.min_idle > 0 then
        lane.rest = math.max(lane.rest, step.now + lane.min_idle)
      end
      item.claim_id, item.losses = '', item.losses + 1
      if item.losses >= step.request.max_losses then
        bury(step, lane, user, item_id, item, 'killed_worker')
      else
        item.status = 'waiting'
        hand_back(lane, item.entry)
      end
      write_item(step, user, item_id, item)
    end
  end
  return #lost
end

local function expire(step)
  local members = fallen_due(step, 'expiry')
  for _, member in ipairs(members) do
    local user, task, item_id = string.match(member, '^([^:]*):([^:]*):(.*)$')
    redis.call('HDEL', step.status .. ':task_meta:' .. user, item_id)
    if task ~= '' then
      redis.call('SREM', step.status .. ':task_items:' .. user .. ':' .. task, item_id)
    end
    redis.call('ZREM', step.prefix .. ':expiry', member)
  end
  return #members
end

-- The first moment at which anything waits for time, remembered so that only an earlier one is news.
local function next_due(step)
  local first
  for _, name in ipairs({ 'due', 'resting', 'leases', 'expiry' }) do
    local score = tonumber(redis.call('ZRANGE', step.prefix .. ':' .. name, 0, 0, 'WITHSCORES')[2])
    if score and (not first or score < first) then
      first = score
    end
  end
  if first then
    redis.call('SET', step.prefix .. ':horizon', first)
  else
    redis.call('DEL', step.prefix .. ':horizon')
  end
  return first
end

local function advance_call(_, arguments)
  local step = open_step(arguments)
  local staged = stage(step)
  local rested = end_rests(step)
  local reaped = reap(step)
  local expired = expire(step)
  finish(step)
  return cmsgpack.pack({ step.now, staged, rested, reaped, expired, next_due(step) or -1 })
end

redis.register_function({ function_name = LIBRARY .. '_advance', callback = advance_call, flags = { 'allow-oom' } })
