-- Health: how old the work is, at a cost that does not grow with the amount of work.

local COMPARED = 100 -- lanes in the rings that are compared, and claims whose lanes are

-- The earlier of two moments; each may be missing.
local function earlier(one, other)
  return one and other and math.min(one, other) or one or other
end

-- Since when the message of an entry waits, and when it was accepted; nothing if it does not wait.
local function entry_since(step, lane, entry)
  local user = string.match(lane.name, '^[^:]*')
  local item = entry and read_item(step, user, entry[2][4] or '')
  if item and item.status == 'waiting' then
    return waiting_since(item), item.submitted_at
  end
end

-- The first message of a lane that nobody has claimed yet.
local function first_new(lane)
  local last = last_delivered(lane.key)
  return last and redis.call('XRANGE', lane.key, '(' .. last, '+', 'COUNT', 1)[1]
end

-- The first message of a lane that was handed back.
local function first_returned(lane)
  local page = redis.pcall('XPENDING', lane.key, GROUP, '-', '+', 1, RETURNED)
  local pending = not page.err and page[1]
  return pending and redis.call('XRANGE', lane.key, pending[1], pending[1])[1]
end

-- Since when the oldest message of a lane waits, and when the oldest was accepted. New messages are in the
-- order in which they came; of those that were handed back only the first is looked at.
local function lane_since(step, lane)
  if redis.call('EXISTS', lane.key) == 0 then
    return nil -- somebody has deleted the stream
  end
  local since, created = entry_since(step, lane, first_new(lane))
  if lane.returned > 0 then
    local other_since, other_created = entry_since(step, lane, first_returned(lane))
    since, created = earlier(since, other_since), earlier(created, other_created)
  end
  return since, created
end

-- The labels that have something to run now, and when a message of any label was last completed.
local function look_at_labels(step)
  local labels, last = {}, 0
  for _, label in ipairs(redis.call('HKEYS', step.prefix .. ':labels')) do
    local scope = scope_of(step, label)
    last = math.max(last, scope.ended and scope.ended.last_completed_at or 0)
    if scope.ended and scope.depth > scope.running then
      labels[#labels + 1] = scope.name
    end
  end
  return labels, last
end

-- The lanes that have waited longest for their turn, equally many of each label.
local function next_in_turn(step, labels)
  local names = {}
  local most = math.max(1, math.floor(COMPARED / math.max(1, #labels)))
  for _, label in ipairs(labels) do
    for _, name in ipairs(redis.call('ZRANGE', step.prefix .. ':ready:' .. label, 0, most - 1)) do
      names[#names + 1] = name
    end
  end
  return names
end

-- The lanes that wait outside of the rings for the end of one of the oldest claims.
local function held_up(step)
  local names = {}
  local leased = redis.call('ZRANGE', step.prefix .. ':leases', 0, COMPARED - 1)
  for _, found in ipairs(read_all(step, leased)) do
    local name = lane_name(found.item)
    names[#names + 1] = name
    local tenant = string.match(name, '^[^:]*:[^:]*')
    for label in string.gmatch(parked_of(step, tenant), '%S+') do
      names[#names + 1] = tenant .. ':' .. label
    end
  end
  return names
end

-- Since when the oldest message waits that is due and whose lane does not rest, and when the oldest of these
-- was accepted. Not all lanes are compared: a lane that was just served, or whose claim is young, may have an
-- older message and be missed.
local function oldest_waiting(step, labels)
  local since, created, seen = nil, nil, {}
  for _, names in ipairs({ next_in_turn(step, labels), held_up(step) }) do
    for _, name in ipairs(names) do
      local lane = see_lane(step, name)
      if not seen[name] and rest_of(step, lane) <= step.now then
        seen[name] = true
        local lane_waits, lane_created = lane_since(step, lane)
        since, created = earlier(since, lane_waits), earlier(created, lane_created)
      end
    end
  end
  return since, created
end

-- Four moments: since when the oldest message waits, when the oldest was accepted, when the oldest claim was made, when a message last
-- completed; -1 for one that there is not.
local function health_call(_, arguments)
  local step = open_step(arguments)
  local labels, last = look_at_labels(step)
  local claimed = redis.call('ZRANGE', step.prefix .. ':claimed', 0, 0, 'WITHSCORES')[2]
  local since, created = oldest_waiting(step, labels)
  return cmsgpack.pack({
    step.now,
    since or -1,
    created or -1,
    tonumber(claimed or -1),
    last > 0 and last or -1,
  })
end

redis.register_function({ function_name = LIBRARY .. '_health', callback = health_call, flags = { 'no-writes' } })
