-- Commands of a person. A command that chooses items has `which`: user, ids, task, cube, label, limit.

local OPEN = { waiting = true, in_progress = true }
local DEAD = { failed = true }
local CANCELLED = '%00cancelled' -- used like a label, as in `reverie.backends.wakeup`
local PAGE = 1000 -- how much of a large key is read at a time

local function matches(which, found)
  local user, cube, label = string.match(lane_name(found.item), '^([^:]*):([^:]*):([^:]*)$')
  return (not which.user or which.user == user)
    and (not which.cube or which.cube == cube)
    and (not which.label or which.label == label)
    and (which.ids and which.ids[found.id] or not which.ids and not found.item.rare.cancel_requested)
    and (not which.task or details_of(found.item).task_id == which.task)
end

-- Adds an item to the chosen ones if it fits.
local function consider(step, chosen, user, item_id)
  local item = read_item(step, user, item_id)
  local found = { user = user, id = item_id, item = item }
  if item and chosen.statuses[item.status] and not chosen.seen[item] and matches(chosen.which, found) then
    chosen.seen[item] = true
    table.insert(chosen, found)
  end
end

local function consider_ids(step, chosen, user, item_ids)
  fetch_items(step, user, item_ids)
  for _, item_id in ipairs(item_ids) do
    consider(step, chosen, user, item_id)
  end
end

-- Considers all items of a user. Only those with the right status are parsed.
local function consider_user(step, chosen, user)
  local cursor, key = '0', user_of(step, user).key
  types.check_key(step, key, 'hash')
  repeat
    local page = redis.call('HSCAN', key, cursor, 'COUNT', PAGE)
    local item_ids = {}
    for index = 1, #page[2], 2 do
      if chosen.statuses[string.match(page[2][index + 1], '^{"status":"([a-z_]+)"') or ''] then
        item_ids[#item_ids + 1] = page[2][index]
      end
    end
    consider_ids(step, chosen, user, item_ids)
    cursor = page[1]
  until cursor == '0'
end

-- Considers the ended items of all users, in the order of their submission, until there are enough.
local function consider_ended(step, chosen)
  for _, status in ipairs({ 'failed', 'cancelled' }) do
    local enough, first = #chosen + chosen.which.limit + 1, 0
    while chosen.statuses[status] do
      local names = redis.call('ZRANGE', step.prefix .. ':' .. status, first, first + PAGE - 1)
      for _, found in ipairs(read_all(step, names)) do
        consider(step, chosen, found.user, found.id)
      end
      if #names < PAGE or #chosen >= enough then
        break
      end
      first = first + PAGE
    end
  end
end

-- Considers the open items of all users that have lanes in a ring, claimed, resting or parked, or messages
-- aside.
local function consider_open(step, chosen)
  local which, users = chosen.which, {}
  local function look(user)
    if not users[user] and #chosen <= which.limit then
      users[user] = true
      consider_user(step, chosen, user)
    end
  end
  local function look_at(key)
    local first = 0
    repeat
      local names = redis.call('ZRANGE', key, first, first + PAGE - 1)
      for _, name in ipairs(names) do
        look(string.match(name, '^[^:]*'))
      end
      first = first + PAGE
    until #names < PAGE or #chosen > which.limit
  end
  for _, label in ipairs(which.label and { which.label } or redis.call('HKEYS', step.prefix .. ':labels')) do
    types.check_label(step, label)
    look_at(step.prefix .. ':ready:' .. label)
  end
  look_at(step.prefix .. ':leases')
  look_at(step.prefix .. ':resting')
  for _, name in ipairs({ 'delayed', 'parked' }) do
    for _, field in ipairs(redis.call('HKEYS', step.prefix .. ':' .. name)) do
      look(string.match(field, '^[^:]*'))
    end
  end
end

-- The first items that fit and have one of these statuses, and whether there are more.
local function choose(step, statuses)
  local which = step.request.which
  local chosen = { which = which, statuses = statuses, seen = {} }
  local ids = which.item_ids
  if ids then
    which.ids = {}
    for _, item_id in ipairs(ids) do
      which.ids[item_id] = true
    end
  end
  if which.user and ids then
    consider_ids(step, chosen, which.user, ids)
  elseif which.user and which.task then
    local key = step.status .. ':task_items:' .. which.user .. ':' .. encode(which.task)
    types.check_key(step, key, 'set')
    consider_ids(step, chosen, which.user, redis.call('SMEMBERS', key))
  elseif which.user then
    consider_user(step, chosen, which.user)
  elseif statuses == OPEN then
    consider_open(step, chosen)
  else
    consider_ended(step, chosen)
  end
  table.sort(chosen, function(one, other)
    return seq_of(one.item) < seq_of(other.item)
  end)
  local more = #chosen > which.limit
  while #chosen > which.limit do
    table.remove(chosen)
  end
  return chosen, more
end

-- Chooses messages, and checks their keys before anything is written.
local function choose_checked(step, statuses)
  local which = step.request.which
  types.check_aside(step)
  if which.user then
    types.check_key(step, step.meta_of .. which.user, 'hash')
  end
  local chosen, more = choose(step, statuses)
  for _, found in ipairs(chosen) do
    types.check_item(step, found.user, found.id, found.item)
  end
  return chosen, more
end

local function names_of(chosen)
  local names = {}
  for index, found in ipairs(chosen) do
    names[index] = { found.user, found.id }
  end
  return names
end

-- Tells all workers that a running message is to be cancelled. A worker that misses this learns it when it
-- renews.
local function tell_of_cancel(step)
  local workers = redis.pcall('HLEN', step.prefix .. ':workers')
  workers = type(workers) == 'number' and math.max(1, workers) or 1
  leave_tokens(step.prefix .. ':wake:' .. CANCELLED, workers, workers)
end

-- Cancels messages: those that wait end at once, those that run are asked to stop.
local function cancel(step)
  local chosen, more = choose_checked(step, OPEN)
  local changed, requested = {}, {}
  for _, found in ipairs(chosen) do
    if found.item.status == 'waiting' then
      end_item(step, found.user, found.id, found.item, 'cancelled')
      table.insert(changed, found)
    else
      found.item.rare.cancel_requested = 1
      write_item(step, found.user, found.id, found.item)
      table.insert(requested, found)
    end
  end
  if #requested > 0 then
    tell_of_cancel(step)
  end
  return changed, requested, more
end

local function requeue_one(step, found)
  local item = found.item
  item.body = redis.call('HGET', step.prefix .. ':dead', reference(found.user, found.id))
  forget_end(step, found.user, found.id, item)
  item.status, item.run, item.note, item.started_at = 'waiting', '', '', 'null'
  item.attempts, item.losses, item.rare.conflicts = 0, 0, nil
  item.rare.requeues = (item.rare.requeues or 0) + 1
  count(step, label_of(item), 1, 0)
  take_unique(step, found.id, item)
  settle_in(step, found.user, found.id, item)
end

-- Lets messages that have failed or were cancelled wait again, as if they were new.
local function requeue(step)
  local chosen, more = choose_checked(step, KEPT)
  for _, found in ipairs(chosen) do
    requeue_one(step, found)
  end
  return chosen, {}, more
end

-- Deletes dead letters.
local function delete(step)
  local chosen, more = choose_checked(step, DEAD)
  for _, found in ipairs(chosen) do
    forget(step, found.user, found.id, found.item)
  end
  return chosen, {}, more
end

local function pause(step)
  types.check_key(step, step.prefix .. ':paused', 'hash')
  redis.call('HSET', step.prefix .. ':paused', step.request.label, step.request.reason)
  return {}, {}, false
end

local function resume(step)
  types.check_key(step, step.prefix .. ':paused', 'hash')
  redis.call('HDEL', step.prefix .. ':paused', step.request.label)
  leave_tokens(step.prefix .. ':wake:' .. step.request.label, 1)
  return {}, {}, false
end

local COMMANDS = { cancel = cancel, requeue = requeue, delete = delete, pause = pause, resume = resume }

local function control_call(_, arguments)
  local step = types.open_writing(arguments)
  local changed, requested, more = COMMANDS[step.request.command](step)
  finish(step)
  tell_horizon(step)
  return cmsgpack.pack({ step.now, names_of(changed), names_of(requested), more })
end

redis.register_function({ function_name = LIBRARY .. '_control', callback = control_call, flags = { 'allow-oom' } })
