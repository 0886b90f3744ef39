-- Views and wake-ups: nothing here moves a message.

-- The bodies of items, wherever they are now; an empty text for a body that is gone.
local function bodies_call(_, arguments)
  local step = open_step(arguments)
  local bodies = {}
  fetch_rows(step, step.request.items)
  for index, row in ipairs(step.request.items) do
    local user, item_id = row[1], row[2]
    local item = read_item(step, user, item_id)
    local body
    if item and KEPT[item.status] then
      body = redis.call('HGET', step.prefix .. ':dead', reference(user, item_id))
    elseif item then
      body = body_of(step, user, item_id, item)
    end
    bodies[index] = body or ''
  end
  return cmsgpack.pack({ step.now, bodies })
end

-- The dead letters of all users that come after a number, in the order of submission: user, item id and JSON
-- of each. At most `limit` are looked at.
local function dead_call(_, arguments)
  local step = open_step(arguments)
  local rows = {}
  local after = string.format('(%d', step.request.after)
  local names =
    redis.call('ZRANGE', step.prefix .. ':failed', after, '+inf', 'BYSCORE', 'LIMIT', 0, step.request.limit)
  for _, found in ipairs(read_all(step, names)) do
    rows[#rows + 1] = { found.user, found.id, item_text(found.item) }
  end
  return cmsgpack.pack({ step.now, rows, #names })
end

-- The counts of each label, the paused labels and why, and the workers: names and texts in turn.
local function labels_call(_, arguments)
  local step = open_step(arguments)
  local answer = { step.now }
  for index, name in ipairs({ 'labels', 'paused', 'workers' }) do
    answer[index + 1] = redis.call('HGETALL', step.prefix .. ':' .. name)
  end
  return cmsgpack.pack(answer)
end

-- The lanes of a user that have work: name without the user, how many messages wait, how many run.
local function lanes_call(_, arguments)
  local step = open_step(arguments)
  local user = step.request.user
  local rows = {}
  for index, field in ipairs(redis.call('HKEYS', step.lanes_of .. user)) do
    local lane = see_lane(step, user .. ':' .. field)
    local running = pending_of(lane)
    rows[index] = { field, redis.call('XLEN', lane.key) - running + lane.aside, running }
  end
  return cmsgpack.pack({ step.now, rows })
end

-- When the message that waits in a lane with a unique key is due; -1 if none waits for later.
local function due_later_call(_, arguments)
  local step = open_step(arguments)
  local user, due = step.request.user, -1
  local ids = redis.call('ZRANGE', unique_key(step, step.request.lane, step.request.unique), 0, -1)
  fetch_items(step, user, ids)
  for _, item_id in ipairs(ids) do
    local item = read_item(step, user, item_id)
    if item and item.status == 'waiting' and item.rare.due and item.rare.due > step.now then
      due = due < 0 and item.rare.due or math.min(due, item.rare.due)
    end
  end
  return cmsgpack.pack({ step.now, due })
end

-- An item, an empty text if it is unknown; and what is remembered of its runs.
local function history_call(_, arguments)
  local step = open_step(arguments)
  local user, item_id = step.request.user, step.request.item_id
  local text = redis.call('HGET', user_of(step, user).key, item_id)
  local runs = text and redis.call('LRANGE', key_of(step, 'history', user, item_id), 0, -1)
  return cmsgpack.pack({ step.now, text or '', runs or {} })
end

-- Replaces a token that a cancelled waiter may have taken, where there is work.
local function nudge_call(_, arguments)
  local step = open_step(arguments)
  for _, label in ipairs(step.request.labels) do
    if label == '_triggers' or redis.call('EXISTS', step.prefix .. ':ready:' .. label) == 1 then
      leave_tokens(step.prefix .. ':wake:' .. label, 1)
    end
  end
  return cmsgpack.pack({ step.now })
end

local function now_call(_, arguments)
  return cmsgpack.pack({ clock_now(arguments[1]) })
end

redis.register_function({ function_name = LIBRARY .. '_bodies', callback = bodies_call, flags = { 'no-writes' } })
redis.register_function({ function_name = LIBRARY .. '_dead', callback = dead_call, flags = { 'no-writes' } })
redis.register_function({ function_name = LIBRARY .. '_labels', callback = labels_call, flags = { 'no-writes' } })
redis.register_function({ function_name = LIBRARY .. '_lanes', callback = lanes_call, flags = { 'no-writes' } })
redis.register_function({
  function_name = LIBRARY .. '_due_later',
  callback = due_later_call,
  flags = { 'no-writes' },
})
redis.register_function({ function_name = LIBRARY .. '_history', callback = history_call, flags = { 'no-writes' } })
redis.register_function({ function_name = LIBRARY .. '_now', callback = now_call, flags = { 'no-writes' } })
redis.register_function({ function_name = LIBRARY .. '_nudge', callback = nudge_call, flags = { 'allow-oom' } })
