-- Upgrading: brings the triggers that version 5 of the keys has written to the form that `trigger_hashes.lua`
-- describes.
--
-- In version 5 all times were in seconds with a fraction, `queue:{type}` was the set that was looked at, a trigger of
-- no user was in it under an empty name, and the lock had the id of the message. A trigger that has the present form
-- stays as it is. Therefore processes may upgrade one queue at the same time, and again after one has died.

local SECONDS_END = 1e11 -- a smaller number is a time in seconds, a larger one in milliseconds

local function in_ms(text)
  local number = tonumber(text or nil)
  return number and math.floor((number < SECONDS_END and number * 1000 or number) + 0.5)
end

local function in_seconds(ms)
  return string.format('%d', math.floor(ms / 1000))
end

local function rescore(own, key)
  local score = redis.call('ZSCORE', own, key)
  if score then
    redis.call('ZADD', own, string.format('%d', in_ms(score)), key)
  end
end

-- Writes the fields of a hash anew.
local function upgrade_hash(own, due_field)
  local names = { 'created_at', due_field, 'last_activity', 'last_run', 'last_exec' } -- as in the field `ms`
  local values, odd = {}, {}
  for place, text in ipairs(redis.call('HMGET', own, unpack(names))) do
    local moment = in_ms(text)
    odd[place] = string.format('%03d', (moment or 0) % 1000)
    if moment then
      values[#values + 1], values[#values + 2] = names[place], in_seconds(moment)
    elseif names[place] == due_field then
      local fired_at = in_ms(redis.call('HGET', own, 'last_run')) -- soon after the last due time, which is not known
      values[#values + 1], values[#values + 2] = 'past', '1'
      values[#values + 1], values[#values + 2] = fired_at and due_field, fired_at and in_seconds(fired_at)
    end
  end
  local lengths = redis.call('HMGET', own, 'interval', 'ttl', 'anchor')
  for index, name in ipairs({ 'interval_ms', 'ttl_ms', 'anchor_ms' }) do
    if lengths[index] then
      local ms = math.floor((tonumber(lengths[index]) or 0) * 1000 + 0.5)
      values[#values + 1], values[#values + 2] = name, string.format('%d', ms)
    end
  end
  redis.call('HSET', own, 'ms', table.concat(odd), unpack(values))
  redis.call('HDEL', own, 'interval', 'ttl', 'anchor')
end

-- Puts a trigger into the sorted sets where it waits now.
local function upgrade_place(step, trigger)
  local at, kind, key = not trigger.running and trigger.scheduled_at, trigger.kind, trigger.key
  redis.call('ZREM', step.triggers .. ':queue:' .. kind, key)
  if at then
    local set = trigger.blocked and ':blocked:' or ':due:'
    redis.call('ZADD', step.triggers .. set .. kind, string.format('%d', at), key)
    if key ~= '' then
      redis.call('ZADD', step.triggers .. ':queue:' .. kind, in_seconds(at), key)
    end
  end
  rescore(step.triggers .. ':finished:' .. kind, key)
end

-- Lets the lock have the token of a run that somebody holds.
local function upgrade_lock(step, trigger)
  redis.call('DEL', step.triggers .. ':lock:' .. trigger.kind .. ':' .. trigger.key)
  local user = encode(trigger.user_id or '_system') -- as in `reverie.message`
  local item = trigger.running and trigger.item_id and read_item(step, user, trigger.item_id)
  if item and item.status == 'in_progress' then
    local lease = redis.call('ZSCORE', step.prefix .. ':leases', reference(user, trigger.item_id))
    follow_claim(step, trigger.item_id, item, math.max(0, tonumber(lease or step.now) - step.now))
  end
end

local function upgrade_trigger(step, kind, key)
  local own = key == '' and step.triggers .. ':periodic:' .. kind or step.triggers .. ':task:' .. kind .. ':' .. key
  local status, odd = unpack(redis.call('HMGET', own, 'status', 'ms'))
  if not status then -- it has expired
    redis.call('ZREM', step.triggers .. ':tasks:' .. kind, key)
    redis.call('ZREM', step.triggers .. ':queue:' .. kind, key)
  elseif not odd then
    upgrade_hash(own, key == '' and 'next_run' or 'scheduled_at')
    local trigger = read_trigger(step, kind, key)
    upgrade_place(step, trigger)
    upgrade_lock(step, trigger)
    local last = step.triggers .. ':last_exec:' .. kind .. ':' .. key
    if trigger.last_exec and redis.call('EXISTS', last) == 1 then
      redis.call('SET', last, in_seconds(trigger.last_exec), 'KEEPTTL')
    end
  end
end

-- Upgrades at most `limit` triggers of a type, those after the key `after`. The answer: the last key, if there may be
-- more.
local function upgrade_call(_, arguments)
  local step = open_step(arguments)
  local kind, after, limit = step.request.type, step.request.after, step.request.limit
  local counted, all = step.triggers .. ':statistics:' .. kind, step.triggers .. ':tasks:' .. kind
  local last_run = in_ms(redis.call('HGET', counted, 'last_run_at'))
  if last_run then
    redis.call('HSET', counted, 'last_run_at', string.format('%d', last_run))
  end
  local keys = redis.call('ZRANGE', all, after and '(' .. after or '-', '+', 'BYLEX', 'LIMIT', 0, limit)
  for _, key in ipairs(keys) do
    upgrade_trigger(step, kind, key)
  end
  return cmsgpack.pack({ step.now, #keys == limit and keys[#keys] or nil })
end

redis.register_function({ function_name = LIBRARY .. '_upgrade', callback = upgrade_call, flags = { 'allow-oom' } })
