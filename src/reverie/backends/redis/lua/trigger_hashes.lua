-- Triggers: one trigger type for one user key each, kept as a hash that anyone may read.
--
-- The rules are those of `backends/trigger_state.py`, which this file, `triggers.lua` and `firing.lua` follow. The hash
-- of a user's trigger is `task:{type}:{user key}`. A trigger of no user, whose user key is empty, has
-- `periodic:{type}`. In keys, types are encoded and user keys are not.
--
-- The fields of a hash, as far as they have a value:
--   user_id, device_id, agent_id, interval_ms, ttl_ms: of the last activity
--   created_at, scheduled_at (without a user: next_run), last_activity, last_run, last_exec: in whole seconds
--   ms: the milliseconds of these five times in this order, three digits each
--   past: there is no next due time, and scheduled_at is the due time of the present run or the last one
--   anchor_ms: the due time by the schedule, if it differs from the due time
--   touched: there was activity, or a person asked for a run, since the present run was fired
--   item_id: the message of the present run or the last one, which was fired at last_run
--   last_status, last_exec, retry_count: how the last run ended, when one last ended well, attempts of the present one
--   blocked: a trigger that this one depends on must run first, and this one waits in another sorted set
--   blocks: the types whose triggers wait because of this one
--
-- Due times are in two sorted sets: `queue:{type}` has those of users in whole seconds, for anyone to read.
-- `due:{type}` has all in milliseconds; this is the one that is looked at. While a trigger is blocked, it is in
-- `blocked:{type}` instead of `due:{type}`.

local whole_seconds, is_enabled, status_of, read_trigger, set_trigger, set_due, schedule, drop_trigger
local begin_run, follow_claim, end_run, run_of, tally, write_triggers
do
  local FIELDS = { -- all but the due time, which has two names
    'status',
    'created_at',
    'last_activity',
    'user_id',
    'device_id',
    'agent_id',
    'retry_count',
    'interval_ms',
    'ttl_ms',
    'anchor_ms',
    'touched',
    'item_id',
    'last_run',
    'last_status',
    'last_exec',
    'blocked',
    'blocks',
    'ms',
    'past',
  }
  local TIMES = { 'created_at', 'scheduled_at', 'last_activity', 'last_run', 'last_exec' } -- as in the field `ms`
  local IS_TIME = { created_at = true, scheduled_at = true, last_activity = true, last_run = true, last_exec = true }
  local WRITTEN = { interval = 'interval_ms', ttl = 'ttl_ms', anchor = 'anchor_ms' } -- if not as it is named here
  local DAY_MS = 86400000 -- how long it is remembered when a run last ended well, if not longer
  local IS_OPEN = { pending = true, running = true }

  -- A time as it is written in a hash or as a score for anyone to read.
  function whole_seconds(ms)
    return string.format('%d', math.floor(ms / 1000))
  end

  local function to_ms(text)
    return math.floor((tonumber(text) or 0) * 1000 + 0.5) -- a person may have written it
  end

  -- A time in milliseconds: that of its field, and its part of the field `ms`.
  local function exact_ms(text, odd, place)
    return text and to_ms(text) + (tonumber(string.sub(odd or '', 3 * place - 2, 3 * place)) or 0) or nil
  end

  -- The field `ms` of a trigger.
  local function odd_ms(trigger)
    local parts = {}
    for place, name in ipairs(TIMES) do
      parts[place] = string.format('%03d', (trigger[name] or 0) % 1000)
    end
    return table.concat(parts)
  end

  -- Whether a type is known and enabled.
  function is_enabled(step, kind)
    step.enabled = step.enabled or {}
    if step.enabled[kind] == nil then
      step.enabled[kind] = redis.call('HGET', step.triggers .. ':task_type:' .. kind, 'enabled') == 'true'
    end
    return step.enabled[kind]
  end

  function status_of(trigger)
    if trigger.running then
      return 'running'
    end
    return trigger.scheduled_at and 'pending' or trigger.last_status or 'pending'
  end

  -- Remembers the trigger as it is on the server.
  local function keep_as_read(trigger)
    trigger.was = trigger.known and status_of(trigger)
    trigger.was_at = not trigger.running and trigger.scheduled_at
    trigger.was_blocked, trigger.was_exec = trigger.blocked, trigger.last_exec
    trigger.dirty, trigger.changed = {}, false
  end

  local function load_trigger(step, kind, key)
    local own = key == '' and step.triggers .. ':periodic:' .. kind or step.triggers .. ':task:' .. kind .. ':' .. key
    local due = key == '' and 'next_run' or 'scheduled_at'
    local values = redis.pcall('HMGET', own, due, unpack(FIELDS))
    if values.err then
      types.check_key(step, own, 'hash')
    end
    local odd, past = values[19], values[20]
    local trigger = { -- with all its fields at once: a table that grows costs more than all the rest
      kind = kind,
      key = key,
      hash = own,
      due_field = due,
      known = values[2] and true,
      running = values[2] == 'running',
      scheduled_at = not past and exact_ms(values[1], odd, 2) or nil,
      created_at = exact_ms(values[3], odd, 1),
      last_activity = exact_ms(values[4], odd, 3),
      user_id = values[5] or nil,
      device_id = values[6] or nil,
      agent_id = values[7] or nil,
      retry_count = tonumber(values[8] or 0) or 0,
      interval = tonumber(values[9] or nil),
      ttl = tonumber(values[10] or nil),
      anchor = tonumber(values[11] or nil),
      touched = values[12] or nil,
      item_id = values[13] or nil,
      last_run = exact_ms(values[14], odd, 4),
      last_status = values[15] or nil,
      last_exec = exact_ms(values[16], odd, 5),
      blocked = values[17] or nil,
      blocks = values[18] or nil,
      was = nil,
      was_at = nil,
      was_blocked = nil,
      was_exec = nil,
      dirty = nil,
      changed = nil,
    }
    keep_as_read(trigger)
    return trigger
  end

  -- The trigger of a type for a user key. If there is none: nothing, or with `make` a new one.
  function read_trigger(step, kind, key, make)
    step.known_triggers = step.known_triggers or {}
    step.known_triggers[kind] = step.known_triggers[kind] or {}
    local trigger = step.known_triggers[kind][key]
    if not trigger then
      trigger = load_trigger(step, kind, key)
      step.known_triggers[kind][key] = trigger
    end
    if make and not trigger.known then
      local last = redis.call('GET', step.triggers .. ':last_exec:' .. kind .. ':' .. key)
      trigger.known, trigger.created_at, trigger.last_exec = true, step.now, last and to_ms(last) or nil
      trigger.dirty = { 'created_at', 'retry_count', 'last_exec' }
    end
    return trigger.known and trigger
  end

  local function mark(step, trigger)
    if not trigger.changed then
      trigger.changed = true
      step.changed_triggers = step.changed_triggers or {}
      table.insert(step.changed_triggers, trigger)
    end
  end

  -- Changes one field of a trigger; nil removes it.
  function set_trigger(step, trigger, name, value)
    if trigger[name] ~= value then
      trigger[name], trigger.dirty[#trigger.dirty + 1] = value, name
      mark(step, trigger)
    end
  end

  -- Sets the next due time of a trigger; nil: none. The anchor of a user's trigger is its due time.
  function set_due(step, trigger, moment, anchor)
    if trigger.key ~= '' and anchor == moment then
      anchor = nil
    end
    if moment ~= trigger.scheduled_at then
      set_trigger(step, trigger, 'blocked', nil) -- the next look finds out whether it still is
    end
    set_trigger(step, trigger, 'scheduled_at', moment)
    set_trigger(step, trigger, 'anchor', anchor)
  end

  -- Gives a trigger of a user a new run.
  function schedule(step, trigger, moment)
    set_trigger(step, trigger, 'created_at', step.now)
    set_trigger(step, trigger, 'retry_count', 0)
    set_due(step, trigger, moment, moment)
  end

  -- Forgets a trigger when the step is written.
  function drop_trigger(step, trigger)
    trigger.known = false
    mark(step, trigger)
  end

  -- Adds to the statistics of a type.
  function tally(step, kind, name, amount)
    step.tallies = step.tallies or {}
    step.tallies[kind] = step.tallies[kind] or {}
    step.tallies[kind][name] = (step.tallies[kind][name] or 0) + amount
  end

  -- The trigger that waits for the end of this message; nothing if there is none.
  function run_of(step, item_id, item)
    if not item.rare.rules or not string.find(item.details, '"user_key":', 1, true) then
      return
    end
    local trigger = read_trigger(step, label_of(item), details_of(item).user_key)
    return trigger and trigger.running and trigger.item_id == item_id and trigger
  end

  local function lock_of(step, trigger)
    return step.triggers .. ':lock:' .. trigger.kind .. ':' .. trigger.key
  end

  -- The trigger is running from now on; this message is its run.
  function begin_run(step, trigger, item_id)
    trigger.running = true
    set_trigger(step, trigger, 'item_id', item_id)
    set_trigger(step, trigger, 'last_run', step.now)
    set_trigger(step, trigger, 'touched', nil)
    set_trigger(step, trigger, 'retry_count', 0)
    mark(step, trigger)
  end

  -- Notes that a message was claimed, or waits for another attempt, if it is the run of a trigger. While it is claimed,
  -- the lock of the trigger has the token by which the run is ended, for as long as the run may last.
  function follow_claim(step, item_id, item, lease_ms)
    local trigger = run_of(step, item_id, item)
    if trigger and item.claim_id == '' then
      set_trigger(step, trigger, 'retry_count', item.attempts)
      redis.call('DEL', lock_of(step, trigger))
    elseif trigger then
      local timeout = redis.call('HGET', step.triggers .. ':task_type:' .. trigger.kind, 'timeout')
      local lasts = math.max(lease_ms, to_ms(timeout or 0), 1)
      redis.call('SET', lock_of(step, trigger), item.claim_id, 'PX', string.format('%d', lasts))
    end
  end

  -- The run of a trigger has ended, well or with a problem.
  function end_run(step, trigger, good, problem)
    tally(step, trigger.kind, 'runs', 1)
    tally(step, trigger.kind, 'failures', good and 0 or 1)
    tally(step, trigger.kind, 'duration_ms', step.now - (trigger.last_run or step.now))
    if not good then
      step.last_errors = step.last_errors or {}
      step.last_errors[trigger.kind] = problem or false
    end
    trigger.running, step.run_ended = false, true
    set_trigger(step, trigger, 'last_status', good and 'completed' or 'failed')
    if good then
      set_trigger(step, trigger, 'last_exec', step.now)
    end
    if trigger.touched and trigger.user_id then
      schedule(step, trigger, step.now + (trigger.interval or 0))
    elseif trigger.touched then
      set_due(step, trigger, step.now, trigger.anchor)
    end
    set_trigger(step, trigger, 'touched', nil)
    mark(step, trigger)
    redis.call('DEL', lock_of(step, trigger))
    if good and trigger.user_id then
      local last = step.triggers .. ':last_exec:' .. trigger.kind .. ':' .. trigger.key
      redis.call('SET', last, whole_seconds(step.now), 'PX', math.max(DAY_MS, trigger.interval or 0))
    end
  end

  -- Notes a change of a sorted set, which `write_sorted` makes. Without a score the member leaves the set.
  local function sort_in(step, name, kind, key, score)
    local own = step.triggers .. ':' .. name .. ':' .. kind
    step.sorted[own] = step.sorted[own] or {}
    step.sorted[own][key] = score or false
  end

  local function write_sorted(step)
    for own, members in pairs(step.sorted) do
      local put, gone = {}, {}
      for key, score in pairs(members) do
        if score then
          put[#put + 1], put[#put + 2] = score, key
        else
          gone[#gone + 1] = key
        end
      end
      send('ZREM', own, gone)
      send('ZADD', own, put)
    end
  end

  -- Puts back the triggers that were put aside because of this one, if they may be due now.
  local function release(step, trigger)
    local is_same = trigger.known and IS_OPEN[status_of(trigger)] and trigger.last_exec == trigger.was_exec
    if trigger.blocks and not is_same then
      for kind in string.gmatch(trigger.blocks, '[^,]+') do
        local other = read_trigger(step, kind, trigger.key)
        if other then
          set_trigger(step, other, 'blocked', nil)
        end
      end
      set_trigger(step, trigger, 'blocks', nil)
    end
  end

  -- Writes in which sorted sets a trigger waits for its due time; in none while it is running.
  local function write_place(step, trigger)
    local at = trigger.known and not trigger.running and trigger.scheduled_at
    local was_in, is_in = trigger.was_blocked and 'blocked' or 'due', trigger.blocked and 'blocked' or 'due'
    if trigger.was_at and (not at or was_in ~= is_in) then
      sort_in(step, was_in, trigger.kind, trigger.key)
    end
    if at and (at ~= trigger.was_at or was_in ~= is_in) then
      sort_in(step, is_in, trigger.kind, trigger.key, string.format('%d', at))
      if is_in == 'due' then
        step.sooner[trigger.kind] = math.min(at, step.sooner[trigger.kind] or at)
      end
    end
    if trigger.key ~= '' and at ~= trigger.was_at then
      sort_in(step, 'queue', trigger.kind, trigger.key, at and whole_seconds(at))
    end
  end

  local function write_hash(step, trigger)
    local values, gone, status = {}, {}, status_of(trigger)
    if trigger.key == '' then
      status = trigger.running and 'running' or 'idle'
    end
    values[1], values[2] = 'status', status
    local is_moved = false
    for _, name in ipairs(trigger.dirty) do
      local value, written = trigger[name], WRITTEN[name] or name
      is_moved = is_moved or IS_TIME[name]
      if name == 'scheduled_at' and not value then
        values[#values + 1], values[#values + 2] = 'past', '1'
      elseif name == 'scheduled_at' then
        values[#values + 1], values[#values + 2] = trigger.due_field, whole_seconds(value)
        gone[#gone + 1] = 'past'
      elseif value == nil then
        gone[#gone + 1] = written
      else
        values[#values + 1] = written
        values[#values + 1] = IS_TIME[name] and whole_seconds(value) or value
      end
    end
    if is_moved then
      values[#values + 1], values[#values + 2] = 'ms', odd_ms(trigger)
    end
    redis.call('HSET', trigger.hash, unpack(values))
    send('HDEL', trigger.hash, gone)
  end

  -- Lets a finished trigger expire. The sorted set says when, because the list of all triggers must lose it, too.
  local function write_expiry(step, trigger)
    if trigger.user_id and not IS_OPEN[status_of(trigger)] then
      local kept = math.max(1, trigger.ttl or DAY_MS)
      redis.call('PEXPIRE', trigger.hash, kept)
      sort_in(step, 'finished', trigger.kind, trigger.key, string.format('%d', step.now + kept))
    elseif trigger.was and not IS_OPEN[trigger.was] then
      redis.call('PERSIST', trigger.hash)
    end
  end

  local function write_trigger(step, trigger)
    release(step, trigger)
    write_place(step, trigger)
    local status = trigger.known and status_of(trigger)
    if status ~= trigger.was then
      if trigger.was then
        tally(step, trigger.kind, trigger.was, -1)
      end
      if status then
        tally(step, trigger.kind, status, 1)
      end
    end
    if trigger.known then
      write_hash(step, trigger)
      write_expiry(step, trigger)
      if not trigger.was then
        sort_in(step, 'tasks', trigger.kind, trigger.key, 0)
      end
    else
      redis.call('DEL', trigger.hash) -- when it last ended well is kept apart
      sort_in(step, 'tasks', trigger.kind, trigger.key)
      step.known_triggers[trigger.kind][trigger.key] = nil
    end
    keep_as_read(trigger)
  end

  local function write_tallies(step)
    for kind, tallies in pairs(step.tallies or {}) do
      local own = step.triggers .. ':statistics:' .. kind
      for name, amount in pairs(tallies) do
        if amount ~= 0 and name ~= 'completed' and name ~= 'failed' then
          redis.call('HINCRBY', own, name, amount)
        end
      end
      if tallies.runs then
        redis.call('HSET', own, 'last_run_at', string.format('%d', step.now))
      end
    end
    for kind, problem in pairs(step.last_errors or {}) do
      local own = step.triggers .. ':statistics:' .. kind
      if problem then
        redis.call('HSET', own, 'last_error', problem)
      else
        redis.call('HDEL', own, 'last_error')
      end
    end
  end

  -- Wakes the clocks. A due time before all known ones wakes all of them, because each looks only at the types that it
  -- handles. The end of a run wakes one of them.
  local function tell_of_due(step)
    local told
    for kind, moment in pairs(step.sooner) do
      local first = redis.call('ZRANGE', step.triggers .. ':due:' .. kind, 0, 0, 'WITHSCORES')[2]
      told = told or not first or moment < tonumber(first)
    end
    local wanted = told and math.max(TOKENS, redis.call('HLEN', step.prefix .. ':workers')) or step.run_ended and 1
    if wanted then
      leave_tokens(step.prefix .. ':wake:_triggers', wanted, wanted)
    end
  end

  -- Writes the triggers that have changed, their places and the statistics, and wakes the clocks.
  function write_triggers(step)
    if not step.changed_triggers and not step.tallies then
      return
    end
    step.sorted, step.sooner = {}, {}
    local index = 0
    while step.changed_triggers and index < #step.changed_triggers do -- writing one trigger may change others
      index = index + 1
      write_trigger(step, step.changed_triggers[index])
    end
    tell_of_due(step)
    write_sorted(step)
    write_tallies(step)
    step.changed_triggers, step.tallies, step.last_errors, step.run_ended = nil, nil, nil, nil
  end
end
