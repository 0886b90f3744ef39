-- Lanes: a stream each, a line of text with their counts, and a place in the ring of their label.
--
-- The text is "waiting returned running ordered min_idle_ms rest_until queued". `waiting` counts what may be
-- claimed and includes `returned`, the part of it that was claimed before and handed back.

local STATE = '^(%d+) (%d+) (%d+) (%d) (%d+) (%d+) (%d)$'

-- A lane that was drained keeps nothing but its rest, in one key that expires.
local function recall_rest(step, name)
  local key = step.prefix .. ':rest:' .. name
  local rest = redis.call('GET', key)
  if not rest then
    return 0
  end
  redis.call('DEL', key)
  rest = tonumber(rest)
  return rest > step.now and rest or 0
end

local function load_lane(step, name)
  local lane = {
    name = name,
    key = step.prefix .. ':' .. name,
    user = string.match(name, '^[^:]*'),
    label = string.match(name, '[^:]*$'),
    ended = {}, -- entries that leave the stream
    back = {}, -- entries that are handed back
  }
  local state = redis.call('HGET', step.prefix .. ':lanes', name)
  if state then
    local waiting, returned, running, ordered, min_idle, rest, queued = string.match(state, STATE)
    lane.waiting, lane.returned, lane.running = tonumber(waiting), tonumber(returned), tonumber(running)
    lane.ordered, lane.queued = ordered == '1', queued == '1'
    lane.min_idle, lane.rest = tonumber(min_idle), tonumber(rest)
    lane.known_rest = lane.rest
  else
    lane.waiting, lane.returned, lane.running = 0, 0, 0
    lane.ordered, lane.queued = true, false
    lane.min_idle, lane.rest, lane.known_rest = 0, recall_rest(step, name), 0
  end
  return lane
end

-- The lane of this name, to be written when the step is done with it.
local function lane_of(step, name)
  local lane = step.lanes[name]
  if not lane then
    lane = load_lane(step, name)
    step.lanes[name] = lane
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
end

local function write_entries(lane)
  for first = 1, #lane.back, CHUNK do
    local command = { lane.key, GROUP, RETURNED, 0 }
    for index = first, math.min(first + CHUNK - 1, #lane.back) do
      command[#command + 1] = lane.back[index]
    end
    command[#command + 1] = 'JUSTID'
    redis.call('XCLAIM', unpack(command))
  end
  remove_entries(lane)
  lane.back, lane.ended = {}, {}
end

-- Drops all of a drained lane but its rest.
local function drop_lane(step, lane)
  if redis.call('XLEN', lane.key) <= #lane.ended then
    redis.call('DEL', lane.key)
  else
    remove_entries(lane) -- somebody else has written to this stream: that is not ours to delete
  end
  redis.call('HDEL', step.prefix .. ':lanes', lane.name)
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
  lane.known_rest = lane.rest
end

local function state_of(lane)
  return string.format(
    '%.0f %.0f %.0f %d %.0f %.0f %d',
    lane.waiting,
    lane.returned,
    lane.running,
    lane.ordered and 1 or 0,
    lane.min_idle,
    lane.rest,
    lane.queued and 1 or 0
  )
end

-- Writes the lanes that changed. Those that may be served now join the end of their label's ring.
local function write_lanes(step)
  local states, ready, labels = {}, {}, {}
  for _, lane in ipairs(step.touched) do
    lane.touched = false
    if lane.waiting + lane.running == 0 then
      drop_lane(step, lane)
    else
      write_entries(lane)
      if may_be_served(lane) and lane.rest == 0 and not lane.queued then
        lane.queued = true
        if not ready[lane.label] then
          ready[lane.label] = {}
          labels[#labels + 1] = lane.label
        end
        table.insert(ready[lane.label], lane.name)
      end
      write_rest(step, lane)
      states[#states + 1] = lane.name
      states[#states + 1] = state_of(lane)
    end
  end
  step.touched = {}
  in_chunks(states, function(...)
    redis.call('HSET', step.prefix .. ':lanes', ...)
  end)
  for _, label in ipairs(labels) do
    in_chunks(ready[label], function(...)
      redis.call('RPUSH', step.prefix .. ':ready:' .. label, ...)
    end)
    leave_tokens(step.prefix .. ':wake:' .. label, #ready[label])
  end
end

-- Writes all that the step has collected.
local function finish(step)
  write_lanes(step)
  in_chunks(step.leased, function(...)
    redis.call('ZADD', step.prefix .. ':leases', ...)
  end)
  in_chunks(step.unleased, function(...)
    redis.call('ZREM', step.prefix .. ':leases', ...)
  end)
  step.leased, step.unleased = {}, {}
end
