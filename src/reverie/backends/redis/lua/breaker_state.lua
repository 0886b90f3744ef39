-- Breakers and limiters that workers share: a text for each key, which only a worker that has seen it may
-- replace.

local function shared_key(step)
  return step.prefix .. ':shared:' .. step.request.key
end

local function opened_key(step)
  return step.prefix .. ':opened'
end

-- The text of a key; empty if there is none.
local function shared_read_call(_, arguments)
  local step = open_step(arguments)
  return cmsgpack.pack({ step.now, redis.call('GET', shared_key(step)) or '' })
end

-- Writes `text` for `ttl_ms`, or removes the key if `text` is empty; does nothing if the text is no longer
-- `seen`.
local function shared_write_call(_, arguments)
  local step = open_step(arguments)
  local key, request = shared_key(step), step.request
  types.check_key(step, key, 'string')
  types.check_key(step, opened_key(step), 'hash')
  if (redis.call('GET', key) or '') ~= request.seen then
    return cmsgpack.pack({ step.now, false })
  end
  if request.text == '' then
    redis.call('DEL', key)
  else
    redis.call('SET', key, request.text, 'PX', request.ttl_ms)
  end
  if request.open_until then
    redis.call('HSET', opened_key(step), request.key, request.open_until)
  else
    redis.call('HDEL', opened_key(step), request.key)
  end
  return cmsgpack.pack({ step.now, true })
end

-- The keys whose breaker is not closed, each followed by the moment of its next probe.
local function shared_opened_call(_, arguments)
  local step = open_step(arguments)
  types.check_key(step, opened_key(step), 'hash')
  local found = {}
  for _, key in ipairs(redis.call('HKEYS', opened_key(step))) do
    if redis.call('EXISTS', step.prefix .. ':shared:' .. key) == 1 then
      found[#found + 1] = key
      found[#found + 1] = redis.call('HGET', opened_key(step), key)
    else
      redis.call('HDEL', opened_key(step), key) -- its text has expired
    end
  end
  return found
end

redis.register_function({
  function_name = LIBRARY .. '_shared_read',
  callback = shared_read_call,
  flags = { 'no-writes' },
})
redis.register_function({
  function_name = LIBRARY .. '_shared_write',
  callback = shared_write_call,
  flags = { 'allow-oom' },
})
redis.register_function({
  function_name = LIBRARY .. '_shared_opened',
  callback = shared_opened_call,
  flags = { 'allow-oom' },
})
