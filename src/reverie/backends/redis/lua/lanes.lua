-- Lanes: a stream each, a line of text with their counts, and a place in the ring of their label.
--
-- The text is "waiting returned running ordered min_idle_ms rest_until queued". `waiting` counts what may be
-- claimed and includes `returned`, the part of it that was claimed before and handed back.

local STATE = '^(%d+) (%d+) (%d+) (%d) (%d+) (%d+) (%d)$'

-- A lane that was drained keeps nothing but its rest, in one key that expires.
local function remembered_rest(step, name)
  local rest = tonumber(redis.call('GET', step.prefix .. ':rest:' .. name) or 0)
  return rest > step.now and rest or 0
end

-- Makes a lane of its text; one without a text is new, or was drained.
local function new_lane(step, name, state)
  local lane = {
    name = name,
    key = step.prefix .. ':' .. name,
    ended = {}, -- entries that leave the stream
    back = {}, -- entries that are handed back
  }
  if state then
    local waiting, returned, running, ordered, min_idle, rest, queued = string.match(state, STATE)
    lane.waiting, lane.returned, lane.running = tonumber(waiting), tonumber(returned), tonumber(running)
    lane.ordered, lane.queued = ordered == '1', queued == '1'
    lane.min_idle, lane.rest = tonumber(min_idle), tonumber(rest)
    lane.known_rest = lane.rest
  else
    lane.waiting, lane.returned, lane.running = 0, 0, 0
    lane.ordered, lane.queued = true, false
    lane.min_idle, lane.rest, lane.known_rest = 0, remembered_rest(step, name), 0
    lane.remembered = lane.rest > 0
  end
  step.lanes[name] = lane
  return lane
end

-- Reads many lanes by one command, before they are asked for one by one.
local function fetch_lanes(step, names)
  for first = 1, #names, CHUNK do
    local last = math.min(first + CHUNK - 1, #names)
    local states = redis.call('HMGET', step.prefix .. ':lanes', unpack(names, first, last))
    for index = first, last do
      if not step.lanes[names[index]] then
        new_lane(step, names[index], states[index - first + 1])
      end
    end
  end
end

-- The lane of this name, to be written when the step is done with it.
local function lane_of(step, name)
  local lane = step.lanes[name]
  if not lane then
    lane = new_lane(step, name, redis.call('HGET', step.prefix .. ':lanes', name))
  end
  if not lane.touched then
    lane.touched = true
    step.touched[#step.touched + 1] = lane
  end
  return lane
end

-- Puts a message at the end of its lane; the answer is the id of its stream entry.
local function place(lane, item_id, body)
  if lane.waiting + lane.running == 0 then
    redis.pcall('XGROUP', 'CREATE', lane.key, GROUP, '0', 'MKSTREAM') -- it may be there already
  end
  lane.waiting = lane.waiting + 1
  return redis.call('XADD', lane.key, '*', 'message', body, 'item_id', item_id)
end

-- Marks an entry to be handed back: it keeps its place and is read before new ones.
local function hand_back(lane, entry)
  lane.back[#lane.back + 1] = entry
  lane.waiting = lane.waiting + 1
  lane.returned = lane.returned + 1
end

local function remove_entries(lane)
  in_chunks(lane.ended, function(...)
    redis.call('XACK', lane.key, GROUP, ...)
    redis.call('XDEL', lane.key, ...)
  end)
  lane.ended = {}
end

local function return_entries(lane)
  for first = 1, #lane.back, CHUNK do
    local command = { lane.key, GROUP, RETURNED, 0 }
    for index = first, math.min(first + CHUNK - 1, #lane.back) do
      command[#command + 1] = lane.back[index]
    end
    command[#command + 1] = 'JUSTID'
    redis.call('XCLAIM', unpack(command))
  end
  lane.back = {}
end

-- Drops all of a drained lane but its rest.
local function drop_lane(step, lane, drained)
  if redis.call('XLEN', lane.key) <= #lane.ended then
    drained.streams[#drained.streams + 1] = lane.key
  else
    remove_entries(lane) -- somebody else has written to this stream: that is not ours to delete
  end
  drained.names[#drained.names + 1] = lane.name
  if lane.known_rest > 0 then
    redis.call('ZREM', step.prefix .. ':resting', lane.name)
  end
  if lane.rest > step.now then
    local expiry = lane.rest - step.now + REST_MARGIN_MS
    redis.call('SET', step.prefix .. ':rest:' .. lane.name, lane.rest, 'PX', expiry)
  end
  step.lanes[lane.name] = nil
end

local function may_be_served(lane)
  return lane.waiting > 0 and (lane.running == 0 or not lane.ordered)
end

local function write_rest(step, lane)
  if lane.rest == lane.known_rest then
    return
  end
  if lane.rest > 0 then
    redis.call('ZADD', step.prefix .. ':resting', lane.rest, lane.name)
    expect(step, lane.rest)
  else
    redis.call('ZREM', step.prefix .. ':resting', lane.name)
  end
  if lane.remembered then
    redis.call('DEL', step.prefix .. ':rest:' .. lane.name)
    lane.remembered = false
  end
  lane.known_rest = lane.rest
end

local function state_of(lane)
  return string.format(
    '%d %d %d %d %d %d %d',
    lane.waiting,
    lane.returned,
    lane.running,
    lane.ordered and 1 or 0,
    lane.min_idle,
    lane.rest,
    lane.queued and 1 or 0
  )
end

-- Puts a lane that may be served into the ring of its label, unless it is there.
local function queue_lane(lane, rings)
  if lane.queued or lane.rest > 0 or not may_be_served(lane) then
    return
  end
  lane.queued = true
  local label = string.match(lane.name, '[^:]*$')
  if not rings[label] then
    rings[label] = {}
  end
  table.insert(rings[label], lane.name)
end

local function write_rings(step, rings)
  for label, names in pairs(rings) do
    in_chunks(names, function(...)
      redis.call('RPUSH', step.prefix .. ':ready:' .. label, ...)
    end)
    leave_tokens(step.prefix .. ':wake:' .. label, #names)
  end
end

-- Writes the touched lanes. Those that may be served now join the end of their label's ring.
local function write_lanes(step)
  local states, rings, drained = {}, {}, { streams = {}, names = {} }
  for _, lane in ipairs(step.touched) do
    lane.touched = false
    if lane.waiting + lane.running == 0 then
      drop_lane(step, lane, drained)
    else
      return_entries(lane)
      remove_entries(lane)
      queue_lane(lane, rings)
      write_rest(step, lane)
      states[#states + 1] = lane.name
      states[#states + 1] = state_of(lane)
    end
  end
  step.touched = {}
  in_chunks(states, function(...)
    redis.call('HSET', step.prefix .. ':lanes', ...)
  end)
  in_chunks(drained.streams, function(...)
    redis.call('DEL', ...)
  end)
  in_chunks(drained.names, function(...)
    redis.call('HDEL', step.prefix .. ':lanes', ...)
  end)
  write_rings(step, rings)
end
