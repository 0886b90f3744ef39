-- What workers share: a text for each key, replaced only by whoever has seen the text that stands there.

local function shared_key(step)
  return step.prefix .. ':shared:' .. step.request.key
end

-- The text of a key; empty where there is none.
local function shared_read_call(_, arguments)
  local step = open_step(arguments)
  return cmsgpack.pack({ step.now, redis.call('GET', shared_key(step)) or '' })
end

-- Writes `text` for `ttl_ms`, or nothing if it is empty, unless the text is no longer `seen`.
local function shared_write_call(_, arguments)
  local step = open_step(arguments)
  local key, request = shared_key(step), step.request
  if (redis.call('GET', key) or '') ~= request.seen then
    return cmsgpack.pack({ step.now, false })
  end
  if request.text == '' then
    redis.call('DEL', key)
  else
    redis.call('SET', key, request.text, 'PX', request.ttl_ms)
  end
  return cmsgpack.pack({ step.now, true })
end

redis.register_function({
  function_name = LIBRARY .. '_shared_read',
  callback = shared_read_call,
  flags = { 'no-writes' },
})
redis.register_function({ function_name = LIBRARY .. '_shared_write', callback = shared_write_call })
