#!lua name=reverie_benchmarks

-- The least that a queue with statuses must do: one stream, a status as JSON for every move, no lookups.

local STREAM = 'raw'
local GROUP = 'raw'
-- This text is as long as the status that the queue writes.
local STATUS = '{"status":"%s","attempts":%d,"losses":0,"submitted_at":%s,"started_at":%s,"redis_message_id":"%s",'
  .. '"claim_id":"%s",%s"task_type":"noop","mem_cube_id":"%s","level":3,'
  .. '"fingerprint":"d045e588f07e87baf03842207d5882c4","lane":"%s:%s:noop","seq":0}'
local RUN = '"claimed_at":%s,"worker":"host-4711-3f00",'
local END = '"completed_at":%s,'

local function write_status(user, item, status, attempts, now, entry, claim_id, run)
  local text = string.format(STATUS, status, attempts, now, now, entry, claim_id, run, user, user, user)
  redis.call('HSET', 'raw:task_meta:' .. user, item, text)
end

-- Arguments: the time, then user, item and body of each message.
local function submit(_, arguments)
  local now = arguments[1]
  for index = 2, #arguments, 3 do
    local user, item, body = arguments[index], arguments[index + 1], arguments[index + 2]
    local entry = redis.call('XADD', STREAM, '*', 'user', user, 'item', item, 'body', body)
    write_status(user, item, 'waiting', 0, now, entry, '', '')
  end
end

-- Arguments: the time, the claim id, the largest number of messages. Returns the entries of the stream.
local function claim(_, arguments)
  local now, claim_id, most = unpack(arguments)
  local streams = redis.call('XREADGROUP', 'GROUP', GROUP, GROUP, 'COUNT', most, 'STREAMS', STREAM, '>')
  local entries = streams and streams[1][2] or {}
  local run = string.format(RUN, now)
  for _, entry in ipairs(entries) do
    local fields = entry[2]
    write_status(fields[2], fields[4], 'in_progress', 0, now, entry[1], claim_id, run)
  end
  return entries
end

-- Arguments: the time, then entry, user and item of each message.
local function complete(_, arguments)
  local now, entries = arguments[1], {}
  local run = string.format(RUN, now) .. string.format(END, now)
  for index = 2, #arguments, 3 do
    entries[#entries + 1] = arguments[index]
    write_status(arguments[index + 1], arguments[index + 2], 'completed', 1, now, '', '', run)
  end
  redis.call('XACK', STREAM, GROUP, unpack(entries))
  redis.call('XDEL', STREAM, unpack(entries))
end

redis.register_function('raw_submit', submit)
redis.register_function('raw_claim', claim)
redis.register_function('raw_complete', complete)
