-- What every function shares: the time, one step over a whole batch, and commands over long lists.
--
-- Every function takes four arguments: the prefixes of the queue's keys, of the status keys and of the keys of
-- triggers, and the request as MessagePack. Its answer is MessagePack too, and begins with the time of the queue's
-- clock.
-- Ids come percent-encoded where they are part of a key, so that ':' always separates.

local GROUP = 'scheduler_group'
local RETURNED = '_returned' -- the consumer that owns the entries which were handed back
local CHUNK = 1000 -- values sent in one command; Lua cannot unpack a table of any length
local TOKENS = 4 -- the most wake-up tokens that one list holds, if not all who wait should hear of it
local TOKEN_TTL_MS = 60000 -- longer than any worker blocks
local MARGIN_MS = 60000 -- what ends by its value on the queue's clock: its key goes a little later

-- The server's clock, unless a test has stopped it: `{prefix}:clock` then holds the time. Also the first moment at
-- which anything is known to wait for time.
local function clock_now(prefix)
  local stopped, horizon = unpack(redis.call('MGET', prefix .. ':clock', prefix .. ':horizon'))
  horizon = tonumber(horizon or nil)
  if stopped then
    return tonumber(stopped), horizon
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000), horizon
end

-- One call of one function. What it changes is collected here and written by `finish`, in few commands.
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
    lanes = {}, -- by name, as far as they were looked at
    touched = {}, -- those that may have changed since they were last written
    rings = {}, -- by label: the names of lanes that join its ring
    joined = {}, -- by label: how many lanes its ring has got, of which no worker was told
    users = {}, -- by encoded id: the items that were looked at
    changed = {}, -- users with items that have changed since they were last written
    meta_of = arguments[2] .. ':task_meta:', -- begins the key of a user's items
    lanes_of = prefix .. ':lanes:', -- begins the key of a user's lanes
    stream_of = prefix .. ':', -- begins the key of a lane's stream
    scopes = {}, -- by label: what is counted for it
    counted = {}, -- those whose counts have changed since they were last written
    released = {}, -- by claim id: how many of its messages it does not hold any more
    just_ended = {}, -- messages that others depend on and that have ended
    leased = {}, -- score and member of leases to write
    unleased = {}, -- members of leases to remove
    expiring = {}, -- score and member of ended items to remove one day
    earliest = nil, -- the first moment at which time will ask for something new
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

-- Something falls due at `moment`.
local function expect(step, moment)
  if not step.earliest or moment < step.earliest then
    step.earliest = moment
  end
end

-- Whether the time of anything that waits for it may have come.
local function may_be_due(step)
  return not step.horizon or math.min(step.horizon, step.earliest or step.horizon) <= step.now
end

-- Leaves tokens for those who block on `list`: `wanted` in all, as far as there are fewer, and at most `most`.
local function leave_tokens(list, wanted, most)
  local missing = math.min(wanted, most or TOKENS) - redis.call('LLEN', list)
  for _ = 1, missing do
    redis.call('RPUSH', list, '1')
  end
  if missing > 0 then
    redis.call('PEXPIRE', list, TOKEN_TTL_MS)
  end
end

-- Tells whoever waits for time, if what this step expects comes before all that was known.
local function tell_horizon(step)
  if not step.earliest then
    return
  end
  if not step.horizon or step.earliest < step.horizon then
    step.horizon = step.earliest
    redis.call('SET', step.prefix .. ':horizon', step.earliest)
    leave_tokens(step.prefix .. ':wake_time', 1)
  end
end
