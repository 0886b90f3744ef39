-- Lanes: a stream each, a line of text with their counts, and a place in the ring of their label.
--
-- The text is "waiting returned running ordered min_idle_ms rest_until since aside". `waiting` counts what may
-- be claimed and includes `returned`, the part of it that was claimed before and handed back. `since` is the
-- moment at which the lane has joined the ring, 0 while it is not there. `aside` counts what will come into the
-- lane when it is due, or when that has ended on which it depends; a lane that has nothing else has no stream.
--
-- The names of all lanes that have a text stand in a sorted set, in the order of their letters: those of one user
-- stand together.

local STATE = '^(%d+) (%d+) (%d+) (%d) (%d+) (%d+) (%d+) ?(%d*)$'

-- Makes a lane of its text. One without a text is new, or was drained: then it may still have to rest.
local function new_lane(step, name, state, rest)
  local tenant, label = string.match(name, '^(.*):([^:]*)$')
  local waiting, returned, running, ordered, min_idle, rest_until, since = 0, 0, 0, '1', 0, rest or 0, 0
  local aside
  if state then
    waiting, returned, running, ordered, min_idle, rest_until, since, aside = string.match(state, STATE)
  end
  local lane = {
    name = name,
    tenant = tenant,
    label = label,
    key = step.prefix .. ':' .. name,
    known = state and true, -- it has a text
    touched = false,
    waiting = tonumber(waiting),
    returned = tonumber(returned),
    running = tonumber(running),
    ordered = ordered == '1',
    min_idle = tonumber(min_idle),
    rest = tonumber(rest_until),
    known_rest = tonumber(rest_until),
    since = tonumber(since),
    aside = tonumber(aside) or 0,
    streamed = tonumber(waiting) + tonumber(running) > 0, -- it has a stream
    ended = {}, -- entries that leave the stream
    back = {}, -- entries that are handed back
  }
  step.lanes[name] = lane
  return lane
end

-- Those of the names that were not looked at yet, each once.
local function unknown_lanes(step, names)
  local unknown, seen = {}, {}
  for _, name in ipairs(names) do
    if not step.lanes[name] and not seen[name] then
      seen[name] = true
      unknown[#unknown + 1] = name
    end
  end
  return unknown
end

-- Reads many lanes by few commands, before they are asked for one by one.
local function fetch_lanes(step, names)
  local unknown, drained = unknown_lanes(step, names), {}
  for first = 1, #unknown, CHUNK do
    local last = math.min(first + CHUNK - 1, #unknown)
    local states = redis.call('HMGET', step.prefix .. ':lanes', unpack(unknown, first, last))
    for index = first, last do
      local state = states[index - first + 1]
      if state then
        new_lane(step, unknown[index], state)
      else
        drained[#drained + 1] = unknown[index]
      end
    end
  end
  for first = 1, #drained, CHUNK do
    local last = math.min(first + CHUNK - 1, #drained)
    local rests = redis.call('ZMSCORE', step.prefix .. ':resting', unpack(drained, first, last))
    for index = first, last do
      new_lane(step, drained[index], nil, rests[index - first + 1])
    end
  end
end

-- The lane of this name, to look at.
local function see_lane(step, name)
  if not step.lanes[name] then
    fetch_lanes(step, { name })
  end
  return step.lanes[name]
end

-- The lane of this name, to be written when the step is done with it.
local function lane_of(step, name)
  local lane = see_lane(step, name)
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
    lane.streamed = true
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

-- Takes a waiting entry out of its lane. Only one that was handed back has anything to acknowledge.
local function leave_lane(lane, entry)
  lane.returned = math.max(0, lane.returned - redis.call('XACK', lane.key, GROUP, entry))
  redis.call('XDEL', lane.key, entry)
  lane.waiting = math.max(lane.returned, lane.waiting - 1)
end

-- Counts a message of a lane that is handed to a worker.
local function begin_run(step, lane)
  lane.running = lane.running + 1
  count(step, lane.name, 0, 1)
end

-- Counts a message of a lane whose claim has ended, and lets the lane rest.
local function end_run(step, lane, rest)
  lane.running = math.max(0, lane.running - 1)
  step.freed = true
  count(step, lane.name, 0, -1)
  if rest > 0 then
    lane.rest = math.max(lane.rest, step.now + rest)
  end
end

local function remove_entries(lane)
  if #lane.ended > 0 then
    for first = 1, #lane.ended, CHUNK do
      local last = math.min(first + CHUNK - 1, #lane.ended)
      redis.call('XACK', lane.key, GROUP, unpack(lane.ended, first, last))
    end
    send('XDEL', lane.key, lane.ended)
    lane.ended = {}
  end
end

local function return_entries(lane)
  if #lane.back == 0 then
    return
  end
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

local function leave_ring(step, lane)
  if lane.since > 0 then
    redis.call('ZREM', step.prefix .. ':ready:' .. lane.label, lane.name)
    lane.since = 0
  end
end

local function drop_stream(lane)
  if not lane.streamed then
    return
  end
  lane.streamed = false
  if redis.call('XLEN', lane.key) <= #lane.ended then
    redis.call('DEL', lane.key)
    lane.ended = {}
  else
    remove_entries(lane) -- somebody else has written to this stream: that is not ours to delete
  end
end

-- Drops all of a drained lane but its rest.
local function drop_lane(step, lane, drained)
  if lane.known then
    drained[#drained + 1] = lane.name
  end
  step.lanes[lane.name] = nil
end

local function may_be_served(lane)
  return lane.waiting > 0 and lane.rest == 0 and (lane.running == 0 or not lane.ordered)
end

local function note_rest(step, lane)
  if lane.rest == lane.known_rest then
    return
  end
  if lane.rest > 0 then
    step.resting[#step.resting + 1] = lane.rest
    step.resting[#step.resting + 1] = lane.name
    expect(step, lane.rest)
  else
    redis.call('ZREM', step.prefix .. ':resting', lane.name)
  end
  lane.known_rest = lane.rest
end

local function state_of(lane)
  return string.format(
    '%d %d %d %d %d %d %d %d',
    lane.waiting,
    lane.returned,
    lane.running,
    lane.ordered and 1 or 0,
    lane.min_idle,
    lane.rest,
    lane.since,
    lane.aside
  )
end

-- Puts a lane that may be served into the ring of its label, unless it is there; takes others out of it.
local function queue_lane(step, lane, rings)
  if not may_be_served(lane) then
    leave_ring(step, lane)
  elseif lane.since == 0 and tenant_room(step, lane.tenant) == 0 then
    park(step, lane)
  elseif lane.since == 0 then
    lane.since = step.now
    rings[lane.label] = rings[lane.label] or {}
    table.insert(rings[lane.label], lane.name)
  end
end

local function write_rings(step, rings)
  for label, names in pairs(rings) do
    local turn = take_numbers(step, 'turn', #names)
    local members = {}
    for index, name in ipairs(names) do
      members[#members + 1] = turn + index
      members[#members + 1] = name
    end
    send('ZADD', step.prefix .. ':ready:' .. label, members)
    leave_tokens(step.prefix .. ':wake:' .. label, #names)
  end
end

local function touch_unparked(step)
  local names = unpark(step)
  if names then
    fetch_lanes(step, names)
    for _, name in ipairs(names) do
      lane_of(step, name)
    end
  end
end

local function note_state(lane, states, new)
  if not lane.known then
    lane.known = true
    new[#new + 1] = 0
    new[#new + 1] = lane.name
  end
  states[#states + 1] = lane.name
  states[#states + 1] = state_of(lane)
end

local function write_touched(step, states, new, rings, drained)
  for _, lane in ipairs(step.touched) do
    lane.touched = false
    note_rest(step, lane)
    if lane.waiting + lane.running == 0 then
      drop_stream(lane)
      leave_ring(step, lane)
    else
      return_entries(lane)
      remove_entries(lane)
      queue_lane(step, lane, rings)
    end
    if lane.waiting + lane.running + lane.aside == 0 then
      drop_lane(step, lane, drained)
    else
      note_state(lane, states, new)
    end
  end
  step.touched = {}
end

-- Writes the touched lanes. Those that may be served now join the end of their label's ring.
local function write_lanes(step)
  touch_unparked(step)
  if #step.touched == 0 then
    return
  end
  local states, new, rings, drained = {}, {}, {}, {}
  write_touched(step, states, new, rings, drained)
  send('HSET', step.prefix .. ':lanes', states)
  send('ZADD', step.prefix .. ':lane_names', new)
  send('HDEL', step.prefix .. ':lanes', drained)
  send('ZREM', step.prefix .. ':lane_names', drained)
  send('ZADD', step.prefix .. ':resting', step.resting)
  step.resting = {}
  write_rings(step, rings)
end
