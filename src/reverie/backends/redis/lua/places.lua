-- Places: where a message waits. It waits in its lane; or aside, until it is due or until the messages have
-- ended that it depends on. A message that takes its place in this step carries its body in `item.body`.

-- The body of a message that is in its lane.
local function body_in_lane(key, entry)
  local entries = redis.call('XRANGE', key, entry, entry)
  return entries[1] and entries[1][2][2]
end

-- The body of a message that has not ended.
local function body_of(step, user, item_id, item)
  if item.body then
    return item.body
  elseif item.entry ~= '' then
    return body_in_lane(step.prefix .. ':' .. lane_name(item), item.entry)
  end
  return redis.call('HGET', step.prefix .. ':delayed', reference(user, item_id))
end

-- The member of a message in `due`. Members with one due time are sorted as text, so their number comes first
-- and keeps them in the order of their submission.
local function due_member(user, item_id, item)
  return string.format('%016d:', seq_of(item)) .. reference(user, item_id)
end

local function note_due(step, user, item_id, item)
  redis.call('ZADD', step.prefix .. ':due', item.rare.due, due_member(user, item_id, item))
  expect(step, item.rare.due)
end

local function go_aside(step, user, item_id, item)
  local lane = lane_of(step, lane_name(item))
  lane.aside = lane.aside + 1
  redis.call('HSET', step.prefix .. ':delayed', reference(user, item_id), item.body)
end

local function leave_aside(step, user, item_id, item)
  local lane = lane_of(step, lane_name(item))
  lane.aside = math.max(0, lane.aside - redis.call('HDEL', step.prefix .. ':delayed', reference(user, item_id)))
  redis.call('ZREM', step.prefix .. ':due', due_member(user, item_id, item))
end

-- Watches the deadline of a waiting message, if it has one.
local function watch_deadline(step, user, item_id, item)
  local deadline = deadline_of(item)
  if deadline then
    redis.call('ZADD', step.prefix .. ':deadlines', deadline, reference(user, item_id))
    expect(step, deadline)
  end
end

local function unwatch_deadline(step, user, item_id, item)
  if deadline_of(item) then
    redis.call('ZREM', step.prefix .. ':deadlines', reference(user, item_id))
  end
end

-- Puts a waiting message at the end of its lane; or aside, if it is not due or depends on others.
local function settle_in(step, user, item_id, item)
  if item.status ~= 'waiting' or item.entry ~= '' then
    return
  end
  if item.rare.waits_for or (item.rare.due or 0) > step.now then
    if item.body then
      go_aside(step, user, item_id, item)
    end
    if not item.rare.waits_for then
      note_due(step, user, item_id, item)
    end
  else
    local body = body_of(step, user, item_id, item)
    if not item.body then
      leave_aside(step, user, item_id, item)
    end
    item.rare.due = nil
    wait_from_now(step, item)
    if body then -- it always has one, unless somebody has deleted keys
      item.entry = place(lane_of(step, lane_name(item)), item_id, body)
    end
  end
  item.body = nil
  write_item(step, user, item_id, item)
end

-- Takes a waiting message out of its place, in its lane or aside.
local function leave_place(step, user, item_id, item)
  if item.entry ~= '' then
    leave_lane(lane_of(step, lane_name(item)), item.entry)
    item.entry = ''
  elseif not item.body then
    leave_aside(step, user, item_id, item)
  end
end

-- Moves the due time of a waiting message to now or later. A message in its lane keeps its place, unless the
-- new time is later than now.
local function reschedule(step, user, item_id, item, due)
  if item.entry ~= '' then
    if due <= step.now then
      return
    end
    item.body = body_of(step, user, item_id, item)
    leave_place(step, user, item_id, item)
    item.rare.due = due
    settle_in(step, user, item_id, item)
    return
  end
  item.rare.due = due
  if not item.body and not item.rare.waits_for then
    note_due(step, user, item_id, item)
  end
  write_item(step, user, item_id, item)
end

-- Removes the entry of a claimed message from its lane.
local function withdraw(lane, item)
  remove_later(lane, item.entry)
  item.entry = ''
end
