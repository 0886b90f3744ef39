-- Triggers: task types, activity, and what a person asks for. What tasks are stands in `tasks.lua`, how they come due
-- in `firing.lua`.
--
-- A type is called by its name as it would stand in a key.

local OWN = { enabled = true, configured = true, version = true } -- all other fields of a type are its definition

local function type_key(step, kind)
  return step.triggers .. ':task_type:' .. kind
end

local function tell(step)
  leave_tokens(step.prefix .. ':wake:_triggers', TOKENS)
end

-- A type as it is in force: its name, names and texts of its fields in turn, whether it is enabled, its version.
-- Nothing if it is not known. With it comes whether the configuration has it enabled.
local function read_type(step, kind)
  local flat, own, fields = redis.call('HGETALL', type_key(step, kind)), {}, {}
  for index = 1, #flat, 2 do
    if OWN[flat[index]] then
      own[flat[index]] = flat[index + 1]
    else
      fields[#fields + 1], fields[#fields + 2] = flat[index], flat[index + 1]
    end
  end
  if own.version then
    return { kind, fields, own.enabled == 'true', tonumber(own.version), false }, own.configured == 'true'
  end
end

-- Whether names and texts say the same, in whatever order.
local function same_fields(ones, others)
  local texts = {}
  for index = 1, #ones, 2 do
    texts[ones[index]] = ones[index + 1]
  end
  for index = 1, #others, 2 do
    if texts[others[index]] ~= others[index + 1] then
      return false
    end
  end
  return #ones == #others
end

-- Lets a type that belongs to no user be due, if it has no due time yet or another schedule.
local function schedule_first(step, kind, first_due, anew)
  local task = first_due and read_task(step, kind, '', true)
  if task and (anew or not task.scheduled_at) then
    set_due(step, task, first_due, first_due)
  end
end

-- Brings a definition into force, unless one of a higher version is, or another one of the same.
local function put(step, definition)
  local kind, fields, enabled, version, first_due = unpack(definition, 1, 5)
  local known, configured = read_type(step, kind)
  if known and version <= known[4] then
    known[5] = version == known[4] and not (same_fields(known[2], fields) and configured == enabled)
    return known
  end
  local changed = not known or not same_fields(known[2], fields)
  if changed then
    redis.call('DEL', type_key(step, kind))
    send('HSET', type_key(step, kind), fields)
    redis.call('SADD', step.triggers .. ':task_types', kind)
  end
  local word = tostring(enabled)
  redis.call('HSET', type_key(step, kind), 'enabled', word, 'configured', word, 'version', version)
  schedule_first(step, kind, first_due, changed)
  step.in_force = true
  return { kind, fields, enabled, version, false }
end

-- The definitions of types that a whole configuration leaves out: they are disabled by it.
local function left_out(step, definitions)
  local named, others = {}, {}
  for _, definition in ipairs(definitions) do
    named[definition[1]] = true
  end
  local kinds = redis.call('SMEMBERS', step.triggers .. ':task_types')
  table.sort(kinds)
  for _, kind in ipairs(kinds) do
    local known = not named[kind] and read_type(step, kind)
    if known and known[4] < definitions[1][4] then
      others[#others + 1] = { kind, known[2], false, definitions[1][4] }
    end
  end
  return others
end

local function put_call(_, arguments)
  local step, answers = open_step(arguments), {}
  local definitions = step.request.definitions
  local others = step.request.whole and #definitions > 0 and left_out(step, definitions) or {}
  for _, given in ipairs({ definitions, others }) do
    for _, definition in ipairs(given) do
      answers[#answers + 1] = put(step, definition)
    end
  end
  write_tasks(step)
  if step.in_force then
    tell(step)
  end
  return cmsgpack.pack({ step.now, answers })
end

local function types_call(_, arguments)
  local step, answers = open_step(arguments), {}
  for _, kind in ipairs(redis.call('SMEMBERS', step.triggers .. ':task_types')) do
    answers[#answers + 1] = read_type(step, kind)
  end
  return cmsgpack.pack({ step.now, answers })
end

-- An activity is a row of type, user key, user, device, agent, interval, ttl, whether more of it moves the run, and up
-- to how long after the first.

-- Notes whose a task is, and by what it is scheduled.
local function note_activity(step, task, row)
  set_task(step, task, 'user_id', row[3])
  set_task(step, task, 'device_id', row[4])
  set_task(step, task, 'agent_id', row[5])
  set_task(step, task, 'interval', row[6])
  set_task(step, task, 'ttl', row[7])
end

-- The answer is whether this has scheduled a run.
local function note_touch(step, row)
  if not is_enabled(step, row[1]) then
    return false
  end
  local task, moment = read_task(step, row[1], row[2], true), step.now + row[6]
  note_activity(step, task, row)
  set_task(step, task, 'last_activity', step.now)
  if task.running then
    local first = not task.touched
    set_task(step, task, 'touched', '1')
    return first
  elseif not task.scheduled_at then
    schedule(step, task, moment)
    return true
  elseif row[8] then
    moment = row[9] and math.min(moment, task.created_at + row[9]) or moment
    set_due(step, task, moment, moment)
  end
  return false
end

local function touch_call(_, arguments)
  local step, answers = open_step(arguments), {}
  for index, row in ipairs(step.request.activities) do
    answers[index] = note_touch(step, row)
  end
  write_tasks(step)
  return cmsgpack.pack({ step.now, answers })
end

local function state_row(task)
  return {
    task_type = task.kind,
    user_key = task.key,
    status = status_of(task),
    user_id = task.user_id,
    device_id = task.device_id,
    agent_id = task.agent_id,
    created_at = task.created_at,
    scheduled_at = task.scheduled_at,
    last_activity = task.last_activity,
    item_id = task.item_id,
    retry_count = task.retry_count,
    last_exec = task.last_exec,
  }
end

-- The tasks of a type by their user keys; those that have gone by themselves leave the list.
local function list_tasks(step, kind, after, limit)
  local own, rows = step.triggers .. ':tasks:' .. kind, {}
  while #rows < limit do
    local first = after == '' and '-' or '(' .. after
    local wanted = limit - #rows
    local keys = redis.call('ZRANGE', own, first, '+', 'BYLEX', 'LIMIT', 0, wanted)
    for _, key in ipairs(keys) do
      local task = read_task(step, kind, key)
      if task then
        rows[#rows + 1] = state_row(task)
      else
        redis.call('ZREM', own, key)
      end
    end
    if #keys < wanted then
      break
    end
    after = keys[#keys]
  end
  return rows
end

local function tasks_call(_, arguments)
  local step = open_step(arguments)
  local request, rows = step.request, {}
  if request.user_key then
    local task = read_task(step, request.type, request.user_key)
    rows[1] = task and state_row(task) or nil
  else
    rows = list_tasks(step, request.type, request.after, request.limit)
  end
  return cmsgpack.pack({ step.now, rows })
end

-- What is counted of each type: its name, names and texts in turn.
local function statistics_call(_, arguments)
  local step, rows = open_step(arguments), {}
  for _, kind in ipairs(redis.call('SMEMBERS', step.triggers .. ':task_types')) do
    rows[#rows + 1] = { kind, redis.call('HGETALL', step.triggers .. ':statistics:' .. kind) }
  end
  return cmsgpack.pack({ step.now, rows })
end

local function cancel(step, request)
  local task = read_task(step, request.type, request.user_key)
  if not task or not task.user_id or not (task.scheduled_at or task.touched) then
    return false
  end
  set_due(step, task, nil, nil)
  set_task(step, task, 'touched', nil)
  if not task.running and not task.last_status then
    drop_task(step, task)
  end
  return true
end

local function run_now(step, request)
  local row = request.activity
  if not is_enabled(step, row[1]) then
    return false
  end
  local fresh = not read_task(step, row[1], row[2])
  local task = read_task(step, row[1], row[2], true)
  if fresh and row[2] ~= '' then
    note_activity(step, task, row)
  end
  if task.running then
    set_task(step, task, 'touched', '1')
  elseif row[2] == '' then
    set_due(step, task, step.now, task.anchor) -- the schedule goes on from its anchor
  else
    schedule(step, task, step.now)
  end
  return true
end

local function switch(step, request)
  local known = redis.call('EXISTS', type_key(step, request.type)) == 1
  if known then
    redis.call('HSET', type_key(step, request.type), 'enabled', tostring(request.enabled))
    tell(step)
  end
  return known
end

local COMMANDS = { cancel = cancel, run = run_now, switch = switch }

local function control_call(_, arguments)
  local step = open_step(arguments)
  local done = COMMANDS[step.request.command](step, step.request)
  write_tasks(step)
  return cmsgpack.pack({ step.now, done })
end

local function register(name, callback, flags)
  redis.register_function({ function_name = LIBRARY .. '_trigger_' .. name, callback = callback, flags = flags })
end

register('put', put_call, {})
register('types', types_call, { 'no-writes' })
register('touch', touch_call, {})
register('states', tasks_call, { 'allow-oom' })
register('statistics', statistics_call, { 'no-writes' })
register('control', control_call, { 'allow-oom' })
