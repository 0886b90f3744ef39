-- Repair of triggers: the hash of a trigger says when it is due or which message is its run; everything else is
-- made from that. `trigger_runs.lua` looks from the messages to their triggers.

local SYSTEM = '_system' -- the user of the runs of triggers that belong to nobody
local IS_OPEN = { pending = true, running = true }
local MEMBERS = 500 -- members of a sorted set looked at in one call

local function key_in(step, name, kind)
  return step.triggers .. ':' .. name .. ':' .. kind
end

local function lock_key(step, kind, key)
  return key_in(step, 'lock', kind) .. ':' .. key
end

local function score_in(step, name, trigger)
  return tonumber(redis.call('ZSCORE', key_in(step, name, trigger.kind), trigger.key) or nil)
end

-- Writes a trigger anew, with all that follows from its state. With `anew`, also its due time.
local function rewrite(step, trigger, anew)
  if anew then
    trigger.was_at = nil
  end
  step.changed_triggers = step.changed_triggers or {}
  table.insert(step.changed_triggers, trigger)
end

-- The message of a trigger's run; nothing if it is gone.
local function run_item(step, trigger)
  local user = trigger.key == '' and SYSTEM or trigger.user_id or ''
  return trigger.item_id and read_item(step, encode(user), trigger.item_id)
end

-- Whether the message of a trigger's run has not ended.
local function is_run(step, trigger)
  local item = run_item(step, trigger)
  return item and OPEN[item.status]
end

-- Ends a run whose message has ended or is gone.
local function end_lost_run(step, trigger)
  local item = run_item(step, trigger)
  local good = item and item.status == 'completed'
  end_run(step, trigger, good, not good and 'its message is gone' or nil)
end

-- The message of a trigger's run if a worker holds it.
local function held_item(step, trigger)
  local item = trigger and trigger.running and run_item(step, trigger)
  return item and item.status == 'in_progress' and item
end

-- Gives the lock of a trigger the token of the claim that holds its run.
local function check_lock(step, trigger)
  local item = held_item(step, trigger)
  if item and redis.call('GET', lock_key(step, trigger.kind, trigger.key)) ~= item.claim_id then
    mend(step, 'trigger_locks', function()
      local name = reference(encode(trigger.user_id or SYSTEM), trigger.item_id)
      local lease = tonumber(redis.call('ZSCORE', step.prefix .. ':leases', name) or step.now)
      follow_claim(step, trigger.item_id, item, math.max(0, lease - step.now))
    end)
  end
end

-- Whether a trigger of the same user key is open and remembers that it holds this one up.
local function is_held_up(step, trigger)
  local depends_on = redis.call('HGET', key_in(step, 'statistics', trigger.kind), 'depends_on') or ''
  for kind in string.gmatch(depends_on, '[^,]+') do
    local other = read_trigger(step, kind, trigger.key)
    local blocks = other and IS_OPEN[status_of(other)] and other.blocks
    if blocks and string.find(',' .. blocks, ',' .. trigger.kind .. ',', 1, true) then
      return true
    end
  end
  return false
end

-- Checks that a trigger waits for its due time in the right sorted set and in the one for people, and in no other.
local function check_place(step, trigger)
  local at = not trigger.running and trigger.scheduled_at or nil
  local held_up = at and trigger.blocked and is_held_up(step, trigger)
  local waits_in = held_up and 'blocked' or 'due'
  local other = held_up and 'due' or 'blocked'
  local shown = at and trigger.key ~= '' and tonumber(whole_seconds(at)) or nil
  if score_in(step, other, trigger) or trigger.blocked and at and not held_up then
    mend(step, 'trigger_due', function()
      redis.call('ZREM', key_in(step, other, trigger.kind), trigger.key)
      if not held_up then
        set_trigger(step, trigger, 'blocked', nil)
      end
      rewrite(step, trigger, true)
    end)
  elseif score_in(step, waits_in, trigger) ~= at or score_in(step, 'queue', trigger) ~= shown then
    mend(step, 'trigger_due', function()
      redis.call('ZREM', key_in(step, 'queue', trigger.kind), trigger.key)
      if at then
        rewrite(step, trigger, true)
      else
        redis.call('ZREM', key_in(step, waits_in, trigger.kind), trigger.key)
      end
    end)
  end
end

-- Checks that a trigger is in the list of all.
local function check_list(step, trigger)
  if not redis.call('ZSCORE', key_in(step, 'tasks', trigger.kind), trigger.key) then
    mend(step, 'trigger_lists', function()
      redis.call('ZADD', key_in(step, 'tasks', trigger.kind), 0, trigger.key)
    end)
  end
end

-- Checks that a finished trigger will be forgotten.
local function check_finished(step, trigger)
  local finished = trigger.user_id and not IS_OPEN[status_of(trigger)]
  if finished and not redis.call('ZSCORE', key_in(step, 'finished', trigger.kind), trigger.key) then
    mend(step, 'trigger_lists', function()
      rewrite(step, trigger)
    end)
  end
end

-- Checks triggers. A row: type, user key. The end of a run writes all that follows from it.
local function hashes_call(_, arguments)
  local step = open_mending(arguments)
  for _, row in ipairs(step.request.triggers) do
    local trigger = read_trigger(step, row[1], row[2])
    if trigger and trigger.running and not is_run(step, trigger) then
      mend(step, 'trigger_runs', function()
        end_lost_run(step, trigger)
      end)
    elseif trigger then
      check_lock(step, trigger)
      check_place(step, trigger)
      check_finished(step, trigger)
    end
    if trigger then
      check_list(step, trigger)
    end
  end
  if not step.request.dry and next(step.mended) then
    leave_tokens(step.prefix .. ':wake:_triggers', TOKENS)
  end
  return close_mending(step)
end

-- The status of triggers, empty where there is none. A row: type, user key.
local function statuses_call(_, arguments)
  local step, statuses = open_mending(arguments), {}
  for index, row in ipairs(step.request.triggers) do
    local trigger = read_trigger(step, row[1], row[2])
    statuses[index] = trigger and status_of(trigger) or ''
  end
  return close_mending(step, statuses)
end

-- Looks at due times. The answer: the next cursor, and user key and due time of those that have lost their
-- trigger. The sorted set for people has whole seconds.
local function due_call(_, arguments)
  local step, lost = open_mending(arguments), {}
  local own = key_in(step, step.request.index, step.request.type)
  local unit = step.request.index == 'queue' and 1000 or 1
  local page = redis.call('ZSCAN', own, step.request.cursor, 'COUNT', MEMBERS)
  for place = 1, #page[2], 2 do
    if not read_trigger(step, step.request.type, page[2][place]) then
      local at = math.floor(tonumber(page[2][place + 1]) * unit)
      lost[#lost + 1] = { encode(page[2][place]), at } -- the user key may not be valid text
    end
  end
  return close_mending(step, page[1] == '0' and '' or page[1], lost)
end

-- Makes triggers anew from their due times. A row: type, user key, user, device, agent, due time. The count of a
-- trigger in the statistics stays as it is.
local function adopt_call(_, arguments)
  local step = open_mending(arguments)
  for _, row in ipairs(step.request.rows) do
    local kind, key, user, device, agent, at = unpack(row, 1, 6)
    if not read_trigger(step, kind, key) then
      mend(step, 'trigger_hashes', function()
        local trigger = read_trigger(step, kind, key, true)
        tally(step, kind, 'pending', -1)
        set_trigger(step, trigger, 'user_id', user or nil)
        set_trigger(step, trigger, 'device_id', device or nil)
        set_trigger(step, trigger, 'agent_id', agent or nil)
        redis.call('ZREM', key_in(step, 'blocked', kind), key)
        set_due(step, trigger, at, at)
      end)
    end
  end
  return close_mending(step)
end

-- Removes locks of triggers whose run nobody holds. A row: type, user key.
local function locks_call(_, arguments)
  local step = open_mending(arguments)
  for _, row in ipairs(step.request.locks) do
    if not held_item(step, read_trigger(step, row[1], row[2])) then
      mend(step, 'trigger_locks', function()
        redis.call('DEL', lock_key(step, row[1], row[2]))
      end)
    end
  end
  return close_mending(step)
end

-- Takes the types that have a hash. Each must be in the set of all. One with a schedule that has no trigger any
-- more gets the lowest version, so that the next process that starts puts it anew.
local function types_call(_, arguments)
  local step = open_mending(arguments)
  local types = step.triggers .. ':task_types'
  for _, kind in ipairs(step.request.types) do
    local own = key_in(step, 'task_type', kind)
    local mode, version = unpack(redis.call('HMGET', own, 'trigger_mode', 'version'))
    if version and redis.call('SISMEMBER', types, kind) == 0 then
      mend(step, 'trigger_lists', function()
        redis.call('SADD', types, kind)
      end)
    end
    local has_schedule = version and version ~= '0' and mode and mode ~= 'user_activity'
    local is_due = redis.call('ZSCORE', key_in(step, 'due', kind), '')
    if has_schedule and not is_due and not read_trigger(step, kind, '') then
      mend(step, 'trigger_types', function()
        redis.call('HSET', own, 'version', 0)
      end)
    end
  end
  return close_mending(step)
end

local COUNTED = { 'pending', 'running' }
local WITNESSES = { 'pending', 'running', 'fired', 'runs', 'skipped' }

-- What the statistics of a type say now.
local function witness_of(step, kind)
  local texts = redis.call('HMGET', key_in(step, 'statistics', kind), unpack(WITNESSES))
  for index, text in ipairs(texts) do
    texts[index] = text or ''
  end
  return table.concat(texts, ' ')
end

-- The answer: what the statistics of each of these types say.
local function witness_call(_, arguments)
  local step, found = open_mending(arguments), {}
  for index, kind in ipairs(step.request.types) do
    found[index] = witness_of(step, kind)
  end
  return close_mending(step, found)
end

-- Corrects how many triggers of a type are pending and running, unless something has moved since they were
-- counted. A row: type, witness, pending, running.
local function counts_call(_, arguments)
  local step = open_mending(arguments)
  for _, row in ipairs(step.request.counts) do
    local kind, own = row[1], key_in(step, 'statistics', row[1])
    for index, name in ipairs(COUNTED) do
      local known = tonumber(redis.call('HGET', own, name) or 0) or 0
      if witness_of(step, kind) == row[2] and known ~= row[2 + index] then
        mend(step, 'trigger_counts', function()
          redis.call('HSET', own, name, row[2 + index])
          row[2] = witness_of(step, kind)
        end)
      end
    end
  end
  return close_mending(step)
end

register('trigger_hashes', hashes_call)
register('trigger_statuses', statuses_call)
register('trigger_due_times', due_call)
register('trigger_adopt', adopt_call)
register('trigger_locks', locks_call)
register('trigger_types', types_call)
register('trigger_witness', witness_call)
register('trigger_counts', counts_call)
