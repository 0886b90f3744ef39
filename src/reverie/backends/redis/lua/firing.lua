-- Firing: which tasks are due, and how they become messages. What tasks are stands in `tasks.lua`.

local LOOKED_AT = 1000 -- tasks of one type that may be put aside in one look for what is due
local PAGE = 100
local FORGOTTEN = 100 -- finished tasks of one type that one look forgets at most
local IS_OPEN = { pending = true, running = true }

-- Whether one that a task depends on is scheduled or runs, and has not ended well since the task was fired. Then the
-- task is put aside: it need not be looked at before that one changes.
local function put_aside(step, kind, key, depends_on)
  local task = #depends_on > 0 and read_task(step, kind, key)
  for _, name in ipairs(task and depends_on or {}) do
    local other = read_task(step, name, key)
    if other and IS_OPEN[status_of(other)] and (other.last_exec or 0) <= (task.last_run or 0) then
      set_task(step, task, 'blocked', '1')
      local blocks = other.blocks or ''
      if not string.find(',' .. blocks, ',' .. kind .. ',', 1, true) then
        set_task(step, other, 'blocks', blocks .. kind .. ',')
      end
      return true
    end
  end
  return false
end

-- At most `wanted` tasks of a type whose due times are in a range, the earliest first, without those that are put
-- aside; and whether there may be more because too many were.
local function look_for(step, kind, depends_on, first, last, wanted)
  local own, found, looked = step.triggers .. ':queue:' .. kind, {}, 0
  local most = #depends_on > 0 and wanted + LOOKED_AT or wanted
  while looked < most and #found < wanted do
    local size = math.min(math.max(PAGE, wanted), most - looked)
    local page = redis.call('ZRANGE', own, first, last, 'BYSCORE', 'LIMIT', looked, size, 'WITHSCORES')
    for index = 1, #page, 2 do
      if #found < wanted and not put_aside(step, kind, page[index], depends_on) then
        found[#found + 1] = { kind = kind, key = page[index], at = to_ms(page[index + 1]), place = #found }
      end
    end
    if #page < 2 * size then
      return found, false
    end
    looked = looked + size
  end
  return found, #found < wanted
end

-- Those that were put aside because of others than a type depends on now come back.
local function heed(step, kind, depends_on)
  local own, wanted = step.triggers .. ':statistics:' .. kind, table.concat(depends_on, ',')
  if (redis.call('HGET', own, 'depends_on') or '') ~= wanted then
    redis.call('HSET', own, 'depends_on', wanted)
    for _, key in ipairs(redis.call('ZRANGE', step.triggers .. ':blocked:' .. kind, 0, -1)) do
      local task = read_task(step, kind, key)
      if task then
        set_task(step, task, 'blocked', nil)
      end
    end
    write_tasks(step)
  end
end

-- Forgets finished tasks whose time is over; one that has gone by itself leaves the list of all.
local function forget_finished(step, kind)
  local own = step.triggers .. ':finished:' .. kind
  local keys = redis.call('ZRANGE', own, '-inf', seconds(step.now), 'BYSCORE', 'LIMIT', 0, FORGOTTEN)
  for _, key in ipairs(keys) do
    local task = read_task(step, kind, key)
    if not task then
      redis.call('ZREM', step.triggers .. ':tasks:' .. kind, key)
    elseif not IS_OPEN[status_of(task)] then
      drop_task(step, task)
    end
  end
  send('ZREM', own, keys)
end

-- The task that was found by its due time; nothing if somebody has changed or removed it by hand: then that is noted.
local function found_task(step, found)
  local task = read_task(step, found.kind, found.key)
  local at = task and not task.running and task.scheduled_at
  if at == found.at then
    return task
  end
  local own = step.triggers .. ':queue:' .. found.kind
  if at then
    redis.call('ZADD', own, seconds(at), found.key)
  else
    redis.call('ZREM', own, found.key)
    tally(step, found.kind, 'pending', task and 0 or -1)
  end
end

local function due_row(task)
  return {
    task_type = task.kind,
    user_key = task.key,
    user_id = task.user_id,
    device_id = task.device_id,
    agent_id = task.agent_id,
    scheduled_at = task.scheduled_at,
    anchor = task.anchor or task.scheduled_at,
    last_item_id = task.item_id,
  }
end

-- What is due of the types of the request, each with those it depends on; and the first moment after that, if any.
local function look_at_all(step, limit)
  local due, now, next_due = {}, seconds(step.now), nil
  for order, row in ipairs(step.request.types) do
    local kind, depends_on = row[1], row[2]
    if is_enabled(step, kind) then
      forget_finished(step, kind)
      heed(step, kind, depends_on)
      local found, more = look_for(step, kind, depends_on, '-inf', now, limit + 1)
      for _, one in ipairs(found) do
        one.order = order
        due[#due + 1] = one
      end
      local later, even_more = look_for(step, kind, depends_on, '(' .. now, '+inf', 1)
      local moment = (more or even_more) and step.now or later[1] and later[1].at
      next_due = moment and math.min(moment, next_due or moment) or next_due
    end
  end
  return due, next_due
end

local function due_call(_, arguments)
  local step, rows = open_step(arguments), {}
  local limit = step.request.limit
  local due, next_due = look_at_all(step, limit)
  table.sort(due, function(one, other)
    if one.at ~= other.at then
      return one.at < other.at
    elseif one.order ~= other.order then
      return one.order < other.order
    end
    return one.place < other.place
  end)
  if #due > limit then
    next_due = due[limit + 1].at
  end
  for index = 1, math.min(limit, #due) do
    local task = found_task(step, due[index])
    if task then
      rows[#rows + 1] = due_row(task)
    else
      next_due = step.now
    end
  end
  write_tasks(step)
  return cmsgpack.pack({ step.now, rows, next_due or -1 })
end

local function note_lateness(step, kind, late)
  local own, most = step.triggers .. ':statistics:' .. kind, step.lateness[kind]
  most = most or tonumber(redis.call('HGET', own, 'max_lateness_ms') or 0)
  if late > most then
    redis.call('HSET', own, 'max_lateness_ms', late)
  end
  step.lateness[kind] = math.max(late, most)
  tally(step, kind, 'lateness_ms', late)
end

-- A firing is a row of type, user key, the due time that was seen, the next one, its anchor, and the message if there
-- is one. The answer is the task, if it was not too late.
local function fire(step, row)
  local kind, key, at = row[1], row[2], row[3]
  local task = read_task(step, kind, key)
  if not task or task.running or task.scheduled_at ~= at or not is_enabled(step, kind) then
    return
  end
  set_due(step, task, row[4], row[5])
  if not row[6] then
    tally(step, kind, 'skipped', 1)
    return task
  end
  begin_run(step, task, row[6][2])
  tally(step, kind, 'fired', 1)
  note_lateness(step, kind, math.max(0, step.now - at))
  return task
end

-- A run that is known already, and has ended or is not of this task, cannot end any more.
local function end_known(step, task, user, item_id)
  local item = known_item(step, user, item_id)
  local is_open = item.status == 'waiting' or item.status == 'in_progress'
  if not is_open or run_of(step, item_id, item) ~= task then
    local problem = 'its message was known already'
    if item.note then
      problem = cjson.decode('{' .. item.note .. '"item":0}').error or problem
    end
    end_run(step, task, item.status == 'completed', problem)
  end
end

local function fire_call(_, arguments)
  local step, answers, messages, tasks = open_step(arguments), {}, {}, {}
  step.lateness = {} -- by type: the most that was known
  for index, row in ipairs(step.request.firings) do
    local task = fire(step, row)
    answers[index] = task ~= nil
    if task and row[6] then
      messages[#messages + 1], tasks[#tasks + 1] = row[6], task
    end
  end
  fetch_rows(step, messages)
  for _, other in ipairs(insert_all(step, messages)) do
    local index = other[1] + 1
    end_known(step, tasks[index], messages[index][1], messages[index][2])
  end
  finish(step)
  tell_horizon(step)
  return cmsgpack.pack({ step.now, answers })
end

redis.register_function({ function_name = LIBRARY .. '_trigger_due', callback = due_call, flags = { 'allow-oom' } })
redis.register_function(LIBRARY .. '_trigger_fire', fire_call)
