-- Firing: which triggers are due, and how they become messages. Triggers are described in `trigger_hashes.lua`.

local LOOKED_AT = 1000 -- triggers of one type that one look puts aside at most
local PAGE = 100
local FORGOTTEN = 100 -- finished triggers of one type that one look forgets at most
local IS_OPEN = { pending = true, running = true }

-- Whether a trigger is blocked: see `is_blocked` of the rules. If it is, it is put aside: nobody looks at it before the
-- trigger that blocks it changes.
local function put_aside(step, kind, key, depends_on)
  local trigger = #depends_on > 0 and read_trigger(step, kind, key)
  for _, name in ipairs(trigger and depends_on or {}) do
    local other = read_trigger(step, name, key)
    if other and IS_OPEN[status_of(other)] and (other.last_exec or 0) <= (trigger.last_run or 0) then
      set_trigger(step, trigger, 'blocked', '1')
      local blocks = other.blocks or ''
      if not string.find(',' .. blocks, ',' .. kind .. ',', 1, true) then
        set_trigger(step, other, 'blocks', blocks .. kind .. ',')
      end
      return true
    end
  end
  return false
end

-- At most `wanted` triggers of a type whose due times are in a range, the earliest first, without those that are put
-- aside. The second answer: whether there may be more, because too many were put aside in this look.
local function look_for(step, kind, depends_on, first, last, wanted)
  local own, found, looked = step.triggers .. ':due:' .. kind, {}, 0
  local most = #depends_on > 0 and wanted + LOOKED_AT or wanted
  while looked < most and #found < wanted do
    local size = math.min(math.max(PAGE, wanted), most - looked)
    local page = redis.call('ZRANGE', own, first, last, 'BYSCORE', 'LIMIT', looked, size, 'WITHSCORES')
    for index = 1, #page, 2 do
      if #found < wanted and not put_aside(step, kind, page[index], depends_on) then
        found[#found + 1] = { kind = kind, key = page[index], at = tonumber(page[index + 1]), place = #found }
      end
    end
    if #page < 2 * size then
      return found, false
    end
    looked = looked + size
  end
  return found, #found < wanted
end

-- Puts back the triggers of a type that were put aside, if the type depends on others now.
local function heed(step, kind, depends_on)
  local own, wanted = step.triggers .. ':statistics:' .. kind, table.concat(depends_on, ',')
  if (redis.call('HGET', own, 'depends_on') or '') ~= wanted then
    redis.call('HSET', own, 'depends_on', wanted)
    for _, key in ipairs(redis.call('ZRANGE', step.triggers .. ':blocked:' .. kind, 0, -1)) do
      local trigger = read_trigger(step, kind, key)
      if trigger then
        set_trigger(step, trigger, 'blocked', nil)
      end
    end
    write_triggers(step)
  end
end

-- Forgets finished triggers whose time is over. One that has expired leaves the list of all.
local function forget_finished(step, kind)
  local own = step.triggers .. ':finished:' .. kind
  local keys = redis.call('ZRANGE', own, '-inf', step.now, 'BYSCORE', 'LIMIT', 0, FORGOTTEN)
  for _, key in ipairs(keys) do
    local trigger = read_trigger(step, kind, key)
    if not trigger then
      redis.call('ZREM', step.triggers .. ':tasks:' .. kind, key)
    elseif not IS_OPEN[status_of(trigger)] then
      drop_trigger(step, trigger)
    end
  end
  send('ZREM', own, keys)
end

-- The trigger that was found by its due time. If a person has changed or removed its hash, mend the queue: nothing.
local function found_trigger(step, found)
  local trigger = read_trigger(step, found.kind, found.key)
  local at = trigger and not trigger.running and trigger.scheduled_at
  if at == found.at then
    return trigger
  end
  local own, public = step.triggers .. ':due:' .. found.kind, step.triggers .. ':queue:' .. found.kind
  if at then
    redis.call('ZADD', own, string.format('%d', at), found.key)
  else
    redis.call('ZREM', own, found.key)
    tally(step, found.kind, 'pending', trigger and 0 or -1)
  end
  if at and found.key ~= '' then
    redis.call('ZADD', public, whole_seconds(at), found.key)
  elseif found.key ~= '' then
    redis.call('ZREM', public, found.key)
  end
end

local function due_row(trigger)
  return {
    task_type = trigger.kind,
    user_key = trigger.key,
    user_id = trigger.user_id,
    device_id = trigger.device_id,
    agent_id = trigger.agent_id,
    scheduled_at = trigger.scheduled_at,
    anchor = trigger.anchor or trigger.scheduled_at,
    last_item_id = trigger.item_id,
  }
end

-- The due triggers of the types in the request, and the first due time after now, if any.
local function look_at_all(step, limit)
  local due, now, next_due = {}, string.format('%d', step.now), nil
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
  for _, row in ipairs(step.request.types) do
    types.check_trigger(step, row[1], '')
  end
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
    local trigger = found_trigger(step, due[index])
    if trigger then
      rows[#rows + 1] = due_row(trigger)
    else
      next_due = step.now
    end
  end
  write_triggers(step)
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

-- A firing is a row: type, user key, the due time that was seen, the next due time, its anchor, the message if any. See
-- `fire` of the rules; the answer is the trigger, or nothing if another was quicker.
local function fire(step, row)
  local kind, key, at = row[1], row[2], row[3]
  local trigger = read_trigger(step, kind, key)
  if not trigger or trigger.running or trigger.scheduled_at ~= at or not is_enabled(step, kind) then
    return
  end
  set_due(step, trigger, row[4], row[5])
  if not row[6] then
    tally(step, kind, 'skipped', 1)
    return trigger
  end
  begin_run(step, trigger, row[6][2])
  tally(step, kind, 'fired', 1)
  note_lateness(step, kind, math.max(0, step.now - at))
  return trigger
end

-- Ends a run that was fired with a message that the queue had before: see `known_run` of the rules.
local function end_known(step, trigger, user, item_id)
  local item = known_item(step, user, item_id)
  local is_open = item.status == 'waiting' or item.status == 'in_progress'
  if not is_open or run_of(step, item_id, item) ~= trigger then
    local problem = 'its message was known already'
    if item.note then
      problem = cjson.decode('{' .. item.note .. '"item":0}').error or problem
    end
    end_run(step, trigger, item.status == 'completed', problem)
  end
end

local function fire_call(_, arguments)
  local step, answers, messages, fired = types.open_writing(arguments), {}, {}, {}
  for _, row in ipairs(step.request.firings) do
    types.check_trigger(step, row[1], row[2])
    if row[6] then
      types.check_message(step, row[6])
    end
  end
  step.lateness = {} -- by type: max_lateness_ms so far
  for index, row in ipairs(step.request.firings) do
    local trigger = fire(step, row)
    answers[index] = trigger ~= nil
    if trigger and row[6] then
      messages[#messages + 1], fired[#fired + 1] = row[6], trigger
    end
  end
  fetch_rows(step, messages)
  for _, other in ipairs(insert_all(step, messages)) do
    local index = other[1] + 1
    end_known(step, fired[index], messages[index][1], messages[index][2])
  end
  finish(step)
  tell_horizon(step)
  return cmsgpack.pack({ step.now, answers })
end

redis.register_function({ function_name = LIBRARY .. '_trigger_due', callback = due_call, flags = { 'allow-oom' } })
redis.register_function(LIBRARY .. '_trigger_fire', fire_call)
