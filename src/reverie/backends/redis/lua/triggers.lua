-- Trigger types, activity, the claims of runs, and what a person asks for, by the rules of `backends/trigger_state.py`.
-- Triggers are described in `trigger_hashes.lua`; `firing.lua` fires them.
--
-- `kind` is the encoded name of a type.

local OWN = { enabled = true, configured = true, version = true } -- all other fields of a type are its definition

local function type_key(step, kind)
  return step.triggers .. ':task_type:' .. kind
end

local function tell(step)
  leave_tokens(step.prefix .. ':wake:_triggers', TOKENS)
end

-- A type as it is in force: its name, names and texts of its fields in turn, whether it is enabled, its version. The
-- second answer: whether the configuration enables it. Nothing if the type is not known.
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

-- Whether two lists of names and texts in turn have the same fields, in any order.
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

-- See `schedule_first` of the rules.
local function schedule_first(step, kind, first_due, anew)
  local trigger = first_due and read_trigger(step, kind, '', true)
  if trigger and (anew or not trigger.scheduled_at) then
    set_due(step, trigger, first_due, first_due)
  end
end

-- See `put_type` and `known_type` of the rules.
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

-- See `left_out` of the rules.
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
  types.check_key(step, step.triggers .. ':task_types', 'set')
  local others = step.request.whole and #definitions > 0 and left_out(step, definitions) or {}
  for _, given in ipairs({ definitions, others }) do
    for _, definition in ipairs(given) do
      types.check_key(step, type_key(step, definition[1]), 'hash')
      types.check_trigger(step, definition[1], '')
    end
    for _, definition in ipairs(given) do
      answers[#answers + 1] = put(step, definition)
    end
  end
  write_triggers(step)
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

-- An activity is a row: type, user key, user, device, agent, interval, ttl, debounce, max_wait.

-- Lets a trigger belong to the user who was active.
local function note_activity(step, trigger, row)
  set_trigger(step, trigger, 'user_id', row[3])
  set_trigger(step, trigger, 'device_id', row[4])
  set_trigger(step, trigger, 'agent_id', row[5])
  set_trigger(step, trigger, 'interval', row[6])
  set_trigger(step, trigger, 'ttl', row[7])
end

-- See `touch` of the rules.
local function note_touch(step, row)
  if not is_enabled(step, row[1]) then
    return false
  end
  local trigger, moment = read_trigger(step, row[1], row[2], true), step.now + row[6]
  note_activity(step, trigger, row)
  set_trigger(step, trigger, 'last_activity', step.now)
  if trigger.running then
    local first = not trigger.touched
    set_trigger(step, trigger, 'touched', '1')
    return first
  elseif not trigger.scheduled_at then
    schedule(step, trigger, moment)
    return true
  elseif row[8] then
    moment = row[9] and math.min(moment, trigger.created_at + row[9]) or moment
    set_due(step, trigger, moment, moment)
  end
  return false
end

local function touch_call(_, arguments)
  local step, answers = open_step(arguments), {}
  for _, row in ipairs(step.request.activities) do
    types.check_trigger(step, row[1], row[2])
  end
  for index, row in ipairs(step.request.activities) do
    answers[index] = note_touch(step, row)
  end
  write_triggers(step)
  return cmsgpack.pack({ step.now, answers })
end

local function state_row(trigger)
  return {
    task_type = trigger.kind,
    user_key = trigger.key,
    status = status_of(trigger),
    user_id = trigger.user_id,
    device_id = trigger.device_id,
    agent_id = trigger.agent_id,
    created_at = trigger.created_at,
    scheduled_at = trigger.scheduled_at,
    last_activity = trigger.last_activity,
    item_id = trigger.item_id,
    retry_count = trigger.retry_count,
    last_exec = trigger.last_exec,
  }
end

-- The triggers of a type by user key. One that has expired leaves the list.
local function list_states(step, kind, after, limit)
  local own, rows = step.triggers .. ':tasks:' .. kind, {}
  while #rows < limit do
    local first = after == '' and '-' or '(' .. after
    local wanted = limit - #rows
    local keys = redis.call('ZRANGE', own, first, '+', 'BYLEX', 'LIMIT', 0, wanted)
    for _, key in ipairs(keys) do
      local trigger = read_trigger(step, kind, key)
      if trigger then
        rows[#rows + 1] = state_row(trigger)
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

local function states_call(_, arguments)
  local step = open_step(arguments)
  local request, rows = step.request, {}
  if request.user_key then
    local trigger = read_trigger(step, request.type, request.user_key)
    rows[1] = trigger and state_row(trigger) or nil
  else
    rows = list_states(step, request.type, request.after, request.limit)
  end
  return cmsgpack.pack({ step.now, rows })
end

-- The claim that holds the message of a trigger's last run, as the `Hand` of `wire.py`.
local function held_call(_, arguments)
  local step, served, claim_id, lease_until = open_step(arguments), {}, '', 0
  local trigger = read_trigger(step, step.request.type, step.request.user_key)
  if trigger and trigger.item_id then
    local user, item_id = encode(trigger.user_id or '_system'), trigger.item_id -- as in `reverie.message`
    local item = read_item(step, user, item_id)
    if item and item.status == 'in_progress' then
      local row = message_row(item, body_of(step, user, item_id, item))
      served[1] = { step.prefix .. ':' .. lane_name(item), { row } }
      claim_id = item.claim_id
      lease_until = tonumber(redis.call('ZSCORE', step.prefix .. ':leases', reference(user, item_id)) or step.now)
    end
  end
  return cmsgpack.pack({ step.now, served, claim_id, lease_until })
end

-- The statistics of each type: its name; names and texts in turn.
local function statistics_call(_, arguments)
  local step, rows = open_step(arguments), {}
  for _, kind in ipairs(redis.call('SMEMBERS', step.triggers .. ':task_types')) do
    rows[#rows + 1] = { kind, redis.call('HGETALL', step.triggers .. ':statistics:' .. kind) }
  end
  return cmsgpack.pack({ step.now, rows })
end

-- See `cancel` of the rules.
local function cancel(step, request)
  local trigger = read_trigger(step, request.type, request.user_key)
  if not trigger or not trigger.user_id or not (trigger.scheduled_at or trigger.touched) then
    return false
  end
  set_due(step, trigger, nil, nil)
  set_trigger(step, trigger, 'touched', nil)
  if not trigger.running and not trigger.last_status then
    drop_trigger(step, trigger)
  end
  return true
end

-- See `run_now` of the rules.
local function run_now(step, request)
  local row = request.activity
  if not is_enabled(step, row[1]) then
    return false
  end
  local fresh = not read_trigger(step, row[1], row[2])
  local trigger = read_trigger(step, row[1], row[2], true)
  if fresh and row[2] ~= '' then
    note_activity(step, trigger, row)
  end
  if trigger.running then
    set_trigger(step, trigger, 'touched', '1')
  elseif row[2] == '' then
    set_due(step, trigger, step.now, trigger.anchor) -- the schedule goes on from its anchor
  else
    schedule(step, trigger, step.now)
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
  local activity = step.request.activity or { step.request.type, step.request.user_key or '' }
  types.check_key(step, type_key(step, activity[1]), 'hash')
  types.check_trigger(step, activity[1], activity[2])
  local done = COMMANDS[step.request.command](step, step.request)
  write_triggers(step)
  return cmsgpack.pack({ step.now, done })
end

local function register(name, callback, flags)
  redis.register_function({ function_name = LIBRARY .. '_trigger_' .. name, callback = callback, flags = flags })
end

register('put', put_call, {})
register('types', types_call, { 'no-writes' })
register('touch', touch_call, {})
register('held', held_call, { 'no-writes' })
register('states', states_call, { 'allow-oom' })
register('statistics', statistics_call, { 'no-writes' })
register('control', control_call, { 'allow-oom' })
