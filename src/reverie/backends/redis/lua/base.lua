-- What every function shares: the time, one step over a whole batch, and commands over long lists.
--
-- Every function takes four arguments: the prefixes of the queue's keys, of the status keys and of the keys
-- of triggers, and the request as MessagePack. Its answer is MessagePack too, and begins with the time of the
-- queue's clock.
--
-- Ids come percent-encoded where they are part of a key, so that ':' always separates.

local GROUP = 'scheduler_group'
local RETURNED = '_returned' -- the consumer that owns the entries which were handed back
local CHUNK = 1000 -- values sent in one command; Lua cannot unpack a table of any length
local TOKENS = 4 -- the most wake-up tokens in one list, unless all waiters must wake
local TOKEN_TTL_MS = 60000 -- longer than any worker blocks
local types = {} -- checks that are described in `wrong_types.lua`
local MARGIN_MS = 60000 -- how long a key outlives what its value says on the queue's clock

-- The time: that of the server's clock, or the one in `{prefix}:clock` if a test has stopped the clock. The
-- second answer is the first moment at which anything is known to fall due. Keys of another version are not
-- touched: `library.py` reads this error. Keys that are being upgraded have both versions, such as 5>6.
local function clock_now(prefix)
  local stopped, horizon, version =
    unpack(redis.call('MGET', prefix .. ':clock', prefix .. ':horizon', prefix .. ':version'))
  if version and version:match('[^>]*$') ~= VERSION then
    error({ err = 'KEYSVERSION ' .. version })
  end
  horizon = tonumber(horizon or nil)
  if stopped then
    return tonumber(stopped), horizon
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000), horizon
end

-- Opens a step: one call of one function. Its changes are collected here, and `finish` writes them in few
-- commands.
local function open_step(arguments)
  local prefix = arguments[1]
  local request = cmsgpack.unpack(arguments[4])
  local now, horizon = clock_now(prefix)
  return {
    prefix = prefix,
    status = arguments[2],
    triggers = arguments[3],
    request = request,
    limits = request.limits or {}, -- a limit that is not set is missing
    now = now,
    horizon = horizon,
    lanes = {}, -- by name: those that were read
    touched = {}, -- lanes that may have changed since they were last written
    rings = {}, -- by label: the names of lanes that join its ring
    joined = {}, -- by label: how many lanes have joined its ring without a worker being told
    users = {}, -- by encoded id: the items that were looked at
    changed = {}, -- users with items that have changed since they were last written
    meta_of = arguments[2] .. ':task_meta:', -- begins the key of a user's items
    lanes_of = prefix .. ':lanes:', -- begins the key of a user's lanes
    stream_of = prefix .. ':', -- begins the key of a lane's stream
    scopes = {}, -- by label: what is counted for it
    counted = {}, -- scopes whose counts have changed since they were last written
    released = {}, -- by claim id: how many of its messages it does not hold any more
    just_ended = {}, -- messages that others depend on and that have ended
    leased = {}, -- score and member of leases to write
    unleased = {}, -- members of leases to remove
    lost = false, -- whether a claim was lost
    checked = {}, -- keys that have the right type
    expiring = {}, -- score and member of ended items to remove one day
    earliest = nil, -- the first moment at which something new falls due
  }
end

-- Writes a text so that it can be one part of a key, as `encode_id` does in Python.
local function encode(text)
  return (string.gsub(text, '[^A-Za-z0-9_.@-]', function(byte)
    return string.format('%%%02X', string.byte(byte))
  end))
end

-- Sends one command for all values, a bounded number at a time.
local function send(command, key, values)
  for first = 1, #values, CHUNK do
    redis.call(command, key, unpack(values, first, math.min(first + CHUNK - 1, #values)))
  end
end

-- Notes that something falls due at `moment`.
local function expect(step, moment)
  if not step.earliest or moment < step.earliest then
    step.earliest = moment
  end
end

-- Whether anything may be due now.
local function may_be_due(step)
  return not step.horizon or math.min(step.horizon, step.earliest or step.horizon) <= step.now
end

-- Leaves tokens for the waiters that block on `list`: fills it up to `wanted` tokens, at most to `most`.
local function leave_tokens(list, wanted, most)
  local length = redis.pcall('LLEN', list)
  local missing = type(length) == 'number' and math.min(wanted, most or TOKENS) - length or 0 -- it may be no list
  for _ = 1, missing do
    redis.call('RPUSH', list, '1')
  end
  if missing > 0 then
    redis.call('PEXPIRE', list, TOKEN_TTL_MS)
  end
end

-- Tells all waiters for time, if this step expects something earlier than all that was known. A token would
-- wake only one of them, and that one may be suspended.
local function tell_horizon(step)
  if not step.earliest then
    return
  end
  if not step.horizon or step.earliest < step.horizon then
    step.horizon = step.earliest
    redis.call('SET', step.prefix .. ':horizon', step.earliest)
    local news = step.prefix .. ':wake_horizon'
    redis.call('XADD', news, 'MAXLEN', 1, '*', 'moment', step.earliest)
    redis.call('PEXPIRE', news, TOKEN_TTL_MS)
  end
end
