-- Looking and listening: nothing here moves a message.

-- The bodies of items wherever they are now; an empty text for those that are gone.
local function bodies_call(_, arguments)
  local step = open_step(arguments)
  local bodies = {}
  local user = step.request.user
  fetch_items(step, user, step.request.items)
  for index, item_id in ipairs(step.request.items) do
    local item = read_item(step, user, item_id)
    local body
    if item and item.entry ~= '' then
      body = body_in_lane(step.prefix .. ':' .. details_of(item).lane, item.entry)
    elseif item then
      local hash = item.status == 'failed' and ':dead' or ':delayed'
      body = redis.call('HGET', step.prefix .. hash, reference(user, item_id))
    end
    bodies[index] = body or ''
  end
  return cmsgpack.pack({ step.now, bodies })
end

-- A waiter that was cancelled may have taken a token with it: leaves another where there is work.
local function nudge_call(_, arguments)
  local step = open_step(arguments)
  for _, label in ipairs(step.request.labels) do
    if redis.call('LLEN', step.prefix .. ':ready:' .. label) > 0 then
      leave_tokens(step.prefix .. ':wake:' .. label, 1)
    end
  end
  if #step.request.labels == 0 and redis.call('EXISTS', step.prefix .. ':horizon') == 1 then
    leave_tokens(step.prefix .. ':wake_time', 1)
  end
  return cmsgpack.pack({ step.now })
end

local function now_call(_, arguments)
  return cmsgpack.pack({ clock_now(arguments[1]) })
end

redis.register_function({ function_name = LIBRARY .. '_bodies', callback = bodies_call, flags = { 'no-writes' } })
redis.register_function({ function_name = LIBRARY .. '_now', callback = now_call, flags = { 'no-writes' } })
redis.register_function({ function_name = LIBRARY .. '_nudge', callback = nudge_call, flags = { 'allow-oom' } })
