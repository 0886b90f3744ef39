-- Health: how old the work is, at a cost that does not grow with it.

local COMPARED = 100 -- lanes whose first messages are compared, of all labels together

-- The earlier of two moments, of which each may be missing.
local function earlier(one, other)
  return one and other and math.min(one, other) or one or other
end

-- Since when a message of a stream waits.
local function entry_since(step, lane, entry)
  local user = string.match(lane.name, '^[^:]*')
  local item = entry and read_item(step, user, entry[2][4] or '')
  return item and item.status == 'waiting' and waiting_since(item) or nil
end

-- The first message of a lane that nobody has claimed yet.
local function first_new(lane)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', lane.key)) do
    local fields = {}
    for index = 1, #group, 2 do
      fields[group[index]] = group[index + 1]
    end
    if fields.name == GROUP then
      local after = '(' .. fields['last-delivered-id']
      return redis.call('XRANGE', lane.key, after, '+', 'COUNT', 1)[1]
    end
  end
end

-- The first message of a lane that was handed back.
local function first_returned(lane)
  local pending = redis.call('XPENDING', lane.key, GROUP, '-', '+', 1, RETURNED)[1]
  return pending and redis.call('XRANGE', lane.key, pending[1], pending[1])[1]
end

-- Since when the oldest message of a lane waits. New ones stand in the order in which they came, and of those that
-- were handed back the first stands for all.
local function lane_since(step, lane)
  if redis.call('EXISTS', lane.key) == 0 then
    return nil -- somebody has deleted it
  end
  local since
  if lane.waiting > lane.returned then
    since = entry_since(step, lane, first_new(lane))
  end
  if lane.returned > 0 then
    since = earlier(since, entry_since(step, lane, first_returned(lane)))
  end
  return since
end

-- The labels that have something to run now, and when a message of any label was last completed.
local function look_at_labels(step)
  local labels, last = {}, 0
  local flat = redis.call('HGETALL', step.prefix .. ':labels')
  for index = 1, #flat, 2 do
    local scope = new_scope(step, 'labels', flat[index], flat[index + 1])
    last = math.max(last, scope.ended and scope.ended.last_completed_at or 0)
    if scope.ended and scope.depth > scope.running then
      labels[#labels + 1] = scope.name
    end
  end
  return labels, last
end

-- Since when the oldest message waits that could run now. The lanes that have waited longest for their turn are
-- compared, not all: a lane that has just been served and has older messages may be missed.
local function oldest_waiting(step, labels)
  local since
  local most = math.max(1, math.floor(COMPARED / math.max(1, #labels)))
  for _, label in ipairs(labels) do
    local names = redis.call('ZRANGE', step.prefix .. ':ready:' .. label, 0, most - 1)
    fetch_lanes(step, names)
    for _, name in ipairs(names) do
      since = earlier(since, lane_since(step, see_lane(step, name)))
    end
  end
  return since
end

-- Three moments: since when the oldest waits, since when the oldest claim is held, and the last completion; -1 for
-- what there is not.
local function health_call(_, arguments)
  local step = open_step(arguments)
  local labels, last = look_at_labels(step)
  local claimed = redis.call('ZRANGE', step.prefix .. ':claimed', 0, 0, 'WITHSCORES')[2]
  return cmsgpack.pack({
    step.now,
    oldest_waiting(step, labels) or -1,
    tonumber(claimed or -1),
    last > 0 and last or -1,
  })
end

redis.register_function({ function_name = LIBRARY .. '_health', callback = health_call, flags = { 'no-writes' } })
