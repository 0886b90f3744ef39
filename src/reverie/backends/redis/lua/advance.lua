-- Advancing: does what has fallen due, at most `limit` of each kind.

local LOOKED_AT = 100 -- dead letters whose expiry is noted in one step

-- Puts messages that came due at the end of their lanes.
local function stage(step)
  local members = fallen_due(step, 'due', step.request.limit)
  for _, member in ipairs(members) do
    local user, item_id = split_reference(string.match(member, '^%d+:(.*)$'))
    local item = read_item(step, user, item_id)
    if item then
      settle_in(step, user, item_id, item)
    end
    redis.call('ZREM', step.prefix .. ':due', member)
  end
  return #members
end

local function end_rests(step)
  local names = fallen_due(step, 'resting', step.request.limit)
  send('ZREM', step.prefix .. ':resting', names)
  for _, name in ipairs(names) do
    lane_of(step, name).rest = 0
  end
  return #names
end

-- Hands on the messages whose lease has run out; those that end because of that are added to `ended`.
local function reap(step, ended)
  local names = fallen_due(step, 'leases', step.request.limit)
  for _, found in ipairs(read_all(step, names)) do
    if found.item.claim_id ~= '' then
      local body = lose(step, found.user, found.id, found.item)
      if body then
        ended[#ended + 1] = message_row(found.item, body)
      end
    end
  end
  for _, name in ipairs(names) do
    step.unleased[#step.unleased + 1] = name
  end
  return #names
end

-- Notes the expiry of dead letters that died before their retention was set or lowered. Only the oldest are
-- looked at: others follow when these are gone.
local function date_dead_letters(step)
  if not step.limits.dead_retention_ms then
    return
  end
  local names = redis.call('ZRANGE', step.prefix .. ':failed', 0, LOOKED_AT - 1)
  for _, found in ipairs(read_all(step, names)) do
    local name = reference(found.user, found.id)
    redis.call('ZADD', step.prefix .. ':expiry', 'LT', expiry_of(step, found.item), name)
  end
end

-- Forgets ended messages. A dead letter stays if its retention was raised or removed meanwhile.
local function expire(step)
  date_dead_letters(step)
  local names = fallen_due(step, 'expiry', step.request.limit)
  send('ZREM', step.prefix .. ':expiry', names)
  for _, found in ipairs(read_all(step, names)) do
    local is_dead = found.item.status == 'failed'
    local expiry = is_dead and expiry_of(step, found.item)
    if not is_dead or (expiry and expiry <= step.now) then
      forget(step, found.user, found.id, found.item)
    elseif expiry then
      redis.call('ZADD', step.prefix .. ':expiry', expiry, reference(found.user, found.id))
    end
  end
  return #names
end

-- Forgets workers that were not heard of in time, and rates that hold up nobody any more.
local function prune(step)
  local gone = fallen_due(step, 'alive', step.request.limit)
  send('HDEL', step.prefix .. ':workers', gone)
  send('ZREM', step.prefix .. ':alive', gone)
  redis.call('ZREMRANGEBYSCORE', step.prefix .. ':arrivals', '-inf', step.now)
end

-- The first moment at which anything falls due. It is remembered, so that only an earlier one is told.
local function next_due(step)
  local first
  for _, name in ipairs({ 'due', 'deadlines', 'resting', 'leases', 'expiry' }) do
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

-- Checks the keys of all that falls due now.
local function check_due(step)
  for _, name in ipairs({ 'deadlines', 'due', 'resting', 'leases', 'expiry', 'alive' }) do
    local is_read, names = pcall(fallen_due, step, name, step.request.limit)
    if not is_read then
      types.check_key(step, step.prefix .. ':' .. name, 'zset')
    end
    if #names > 0 or step.limits.dead_retention_ms then
      types.check_aside(step)
      types.check_workers(step)
    end
    if name == 'resting' then
      for _, lane in ipairs(names) do
        types.check_lane(step, lane)
      end
    elseif name ~= 'alive' then
      for index, member in ipairs(names) do
        names[index] = name == 'due' and string.match(member, '^%d+:(.*)$') or member
      end
      local check = name == 'expiry' and types.check_own or types.check_item
      for _, found in ipairs(read_all(step, names)) do
        check(step, found.user, found.id, found.item)
      end
    end
  end
end

local function advance_call(_, arguments)
  local step = open_step(arguments)
  check_due(step)
  local ended, overdue = fail_overdue(step, step.request.limit)
  local staged = stage(step)
  local rested = end_rests(step)
  local reaped = reap(step, ended)
  finish(step)
  local expired = expire(step)
  write_counts(step)
  prune(step)
  local counts = { overdue, staged, rested, reaped, expired }
  return cmsgpack.pack({ step.now, counts, ended, next_due(step) or -1 })
end

redis.register_function({ function_name = LIBRARY .. '_advance', callback = advance_call, flags = { 'allow-oom' } })
