-- Rings: the lanes of a label that may be served, in turn. A lane joins or leaves its ring when it is
-- written.
--
-- A turn is a number that grows, and that tells at which moment the lane joined its ring.

local TURNS_PER_MS = 4096

-- The moment at which a lane got this turn.
local function turn_moment(turn)
  return math.floor(turn / TURNS_PER_MS)
end

local function acknowledge(lane)
  for first = 1, #lane.ended, CHUNK do
    local last = math.min(first + CHUNK - 1, #lane.ended)
    redis.call('XACK', lane.key, GROUP, unpack(lane.ended, first, last))
  end
end

-- Tells workers of the lanes that have joined their rings. After a loss all workers are told, because the
-- worker that lost a message may be suspended and still take a token.
local function wake_workers(step)
  local workers = next(step.joined) and step.lost and redis.pcall('HLEN', step.prefix .. ':workers')
  local most = type(workers) == 'number' and TOKENS + workers
  for label, amount in pairs(step.joined) do
    leave_tokens(step.prefix .. ':wake:' .. label, most or amount, most or TOKENS)
  end
  step.joined = {}
end

-- Whether no more messages of any label may be in progress.
local function is_full(step)
  return step.limits.total_running and total(step).running >= step.limits.total_running
end

local write_lanes
do
  -- Takes `amount` turns; the answer is the turn before the first.
  local function take_turns(step, amount)
    local all = total(step)
    local before = math.max(all.turn, step.now * TURNS_PER_MS)
    all.turn = before + amount
    mark(step, all)
    return before
  end

  local function return_entries(lane)
    for first = 1, #lane.back, CHUNK do
      local command = { lane.key, GROUP, RETURNED, 0 }
      for index = first, math.min(first + CHUNK - 1, #lane.back) do
        command[#command + 1] = lane.back[index]
      end
      command[#command + 1] = 'JUSTID'
      local answer = redis.pcall('XCLAIM', unpack(command))
      if answer.err and not string.find(answer.err, 'NOGROUP', 1, true) then -- NOGROUP: the stream was deleted
        error(answer.err)
      end
    end
    lane.back = false
  end

  -- Brings a lane's stream up to date; the answer is how many entries are left. An empty stream is deleted.
  local function write_stream(lane)
    if lane.back then
      return_entries(lane)
    end
    local left = (lane.length or redis.call('XLEN', lane.key)) - (lane.ended and #lane.ended or 0)
    lane.length = false
    if left <= 0 then
      redis.call('DEL', lane.key)
      lane.streamed, left = false, 0
    elseif lane.ended then
      send('XDEL', lane.key, lane.ended)
      acknowledge(lane)
    end
    lane.ended = false
    return left
  end

  -- Writes the text of a lane that has work. Of a lane without work, only its rest is kept.
  local function write_text(step, lane, left)
    if left + lane.aside == 0 then
      if lane.text then
        redis.call('HDEL', step.lanes_of .. lane.user, lane.field)
      end
      step.lanes[lane.name] = nil
      return
    end
    local text = text_of(lane)
    if text ~= lane.text then
      redis.call('HSET', step.lanes_of .. lane.user, lane.field, text)
      lane.text = text
    end
  end

  local function leave_ring(step, lane)
    if not lane.off_ring then
      redis.call('ZREM', step.prefix .. ':ready:' .. lane.label, lane.name)
    end
  end

  local function join_ring(step, lane)
    lane.off_ring = false
    step.rings[lane.label] = step.rings[lane.label] or {}
    table.insert(step.rings[lane.label], lane.name)
  end

  -- Writes a lane. It joins its ring if it may be served, and leaves it if it may not.
  local function write_lane(step, lane)
    local left, running = lane.fresh and 1 or write_stream(lane), 0
    if lane.fresh or left == 0 then
      lane.fresh, lane.returned = false, 0
    else
      running, lane.returned = pending_of(lane)
    end
    write_text(step, lane, left)
    if left == running or rest_of(step, lane) > 0 or running > 0 and lane.ordered then
      leave_ring(step, lane)
    elseif tenant_room(step, lane.name) == 0 then
      leave_ring(step, lane)
      park(step, lane)
    else
      join_ring(step, lane)
    end
  end

  -- Lets lanes join the end of their rings; lanes that are there already keep their turn.
  local function write_rings(step)
    for label, names in pairs(step.rings) do
      local turn, members = take_turns(step, #names), {}
      for index, name in ipairs(names) do
        members[2 * index - 1], members[2 * index] = string.format('%.0f', turn + index), name
      end
      local key = step.prefix .. ':ready:' .. label
      for first = 1, #members, CHUNK do
        redis.call('ZADD', key, 'NX', unpack(members, first, math.min(first + CHUNK - 1, #members)))
      end
      step.joined[label] = (step.joined[label] or 0) + #names
    end
    step.rings = {}
  end

  -- Writes the touched lanes, and those that were parked because of them.
  function write_lanes(step)
    while #step.touched > 0 do
      local lanes = step.touched
      step.touched = {}
      for _, lane in ipairs(lanes) do
        lane.touched = false
        write_lane(step, lane)
      end
      unpark(step, lanes)
    end
    write_rings(step)
  end
end
