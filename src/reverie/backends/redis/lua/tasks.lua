-- Tasks: one trigger for one user key each, as a hash that anyone may read; and what the end of a run means for it.
--
-- The rules are those of `backends/memory/triggers.py`. A user's task stands in `task:{type}:{user key}`, one of nobody
-- (its user key is empty) in `periodic:{type}`. In keys a type is encoded, a user key stands as it is. In the hashes
-- moments and spans are seconds, with a fraction where there is one; here they are milliseconds.
--
-- A task has in its hash, as far as there is one of these: what the activity said it was scheduled by (user_id,
-- device_id, agent_id, interval, ttl); created_at, scheduled_at (of nobody's: next_run), anchor if that is another
-- moment, last_activity; touched, if there was activity since its run began; item_id and last_run, of its run that is
-- under way or the last one; last_status, last_exec and retry_count, of what has ended; blocked, if it was put aside
-- because one that it depends on must run first; blocks, the types that were put aside because of it.

local seconds, to_ms, is_enabled, status_of, read_task, set_task, set_due, schedule, drop_task
local begin_run, end_run, run_of, tally, write_tasks
do
  local FIELDS = { -- but for the due time, which has two names
    'status',
    'created_at',
    'last_activity',
    'user_id',
    'device_id',
    'agent_id',
    'retry_count',
    'interval',
    'ttl',
    'anchor',
    'touched',
    'item_id',
    'last_run',
    'last_status',
    'last_exec',
    'blocked',
    'blocks',
  }
  local IS_TIME = {
    created_at = true,
    scheduled_at = true,
    last_activity = true,
    interval = true,
    ttl = true,
    anchor = true,
    last_run = true,
    last_exec = true,
  }
  local DAY_MS = 86400000 -- a finished task is remembered for at least a day
  local IS_OPEN = { pending = true, running = true }

  -- Milliseconds as they stand in a hash or as a score.
  function seconds(ms)
    if ms % 1000 == 0 then
      return string.format('%d', ms / 1000)
    end
    local text = string.format('%.3f', ms / 1000)
    return ms % 10 == 0 and string.gsub(text, '0+$', '') or text
  end

  function to_ms(text)
    return math.floor((tonumber(text) or 0) * 1000 + 0.5) -- somebody may have written it by hand
  end

  -- Whether a type is known and enabled.
  function is_enabled(step, kind)
    step.enabled = step.enabled or {}
    if step.enabled[kind] == nil then
      step.enabled[kind] = redis.call('HGET', step.triggers .. ':task_type:' .. kind, 'enabled') == 'true'
    end
    return step.enabled[kind]
  end

  function status_of(task)
    if task.running then
      return 'running'
    end
    return task.scheduled_at and 'pending' or task.last_status or 'pending'
  end

  -- Remembers how a task stands on the server.
  local function keep_as_read(task)
    task.was = task.known and status_of(task)
    task.was_at = not task.running and task.scheduled_at
    task.was_blocked, task.was_exec = task.blocked, task.last_exec
    task.dirty, task.changed = {}, false
  end

  local function load_task(step, kind, key)
    local own = key == '' and step.triggers .. ':periodic:' .. kind or step.triggers .. ':task:' .. kind .. ':' .. key
    local due = key == '' and 'next_run' or 'scheduled_at'
    local values = redis.call('HMGET', own, due, unpack(FIELDS))
    local task = { -- made in one go: a table that grows costs more than all the rest
      kind = kind,
      key = key,
      hash = own,
      due_field = due,
      known = values[2] and true,
      running = values[2] == 'running',
      scheduled_at = values[1] and to_ms(values[1]) or nil,
      created_at = values[3] and to_ms(values[3]) or nil,
      last_activity = values[4] and to_ms(values[4]) or nil,
      user_id = values[5] or nil,
      device_id = values[6] or nil,
      agent_id = values[7] or nil,
      retry_count = tonumber(values[8] or 0) or 0,
      interval = values[9] and to_ms(values[9]) or nil,
      ttl = values[10] and to_ms(values[10]) or nil,
      anchor = values[11] and to_ms(values[11]) or nil,
      touched = values[12] or nil,
      item_id = values[13] or nil,
      last_run = values[14] and to_ms(values[14]) or nil,
      last_status = values[15] or nil,
      last_exec = values[16] and to_ms(values[16]) or nil,
      blocked = values[17] or nil,
      blocks = values[18] or nil,
      was = nil,
      was_at = nil,
      was_blocked = nil,
      was_exec = nil,
      dirty = nil,
      changed = nil,
    }
    keep_as_read(task)
    return task
  end

  -- The task of a type for a user key; nothing if there is none, unless it is to be made.
  function read_task(step, kind, key, make)
    step.tasks = step.tasks or {}
    step.tasks[kind] = step.tasks[kind] or {}
    local task = step.tasks[kind][key]
    if not task then
      task = load_task(step, kind, key)
      step.tasks[kind][key] = task
    end
    if make and not task.known then
      task.known, task.created_at = true, step.now
      task.dirty = { 'created_at', 'retry_count' }
    end
    return task.known and task
  end

  local function mark(step, task)
    if not task.changed then
      task.changed = true
      step.changed_tasks = step.changed_tasks or {}
      table.insert(step.changed_tasks, task)
    end
  end

  -- Changes one thing of a task; nil takes it away.
  function set_task(step, task, name, value)
    if task[name] ~= value then
      task[name], task.dirty[#task.dirty + 1] = value, name
      mark(step, task)
    end
  end

  -- When a task is due next, if it is. A user's task has no anchor but its due time.
  function set_due(step, task, moment, anchor)
    if task.key ~= '' and anchor == moment then
      anchor = nil
    end
    if moment ~= task.scheduled_at then
      set_task(step, task, 'blocked', nil) -- whoever looks next sees whether it still is
    end
    set_task(step, task, 'scheduled_at', moment)
    set_task(step, task, 'anchor', anchor)
  end

  -- Schedules a task that had no due time, or another one.
  function schedule(step, task, moment)
    set_task(step, task, 'created_at', step.now)
    set_task(step, task, 'retry_count', 0)
    set_due(step, task, moment, moment)
  end

  -- Forgets a task when the step is written.
  function drop_task(step, task)
    task.known = false
    mark(step, task)
  end

  -- Adds to what is counted of a type.
  function tally(step, kind, name, amount)
    step.tallies = step.tallies or {}
    step.tallies[kind] = step.tallies[kind] or {}
    step.tallies[kind][name] = (step.tallies[kind][name] or 0) + amount
  end

  -- The task whose run a message is, while that is under way.
  function run_of(step, item_id, item)
    if not item.rare.rules or not string.find(item.details, '"user_key":', 1, true) then
      return
    end
    local task = read_task(step, label_of(item), details_of(item).user_key)
    return task and task.running and task.item_id == item_id and task
  end

  local function lock_of(step, task)
    return step.triggers .. ':lock:' .. task.kind .. ':' .. task.key
  end

  -- A task was fired: this message is its run.
  function begin_run(step, task, item_id)
    task.running = true
    set_task(step, task, 'item_id', item_id)
    set_task(step, task, 'last_run', step.now)
    set_task(step, task, 'touched', nil)
    set_task(step, task, 'retry_count', 0)
    mark(step, task)
    redis.call('SET', lock_of(step, task), item_id)
  end

  -- The run of a task has ended.
  function end_run(step, task, good, problem)
    tally(step, task.kind, 'runs', 1)
    tally(step, task.kind, 'failures', good and 0 or 1)
    tally(step, task.kind, 'duration_ms', step.now - (task.last_run or step.now))
    if not good then
      step.last_errors = step.last_errors or {}
      step.last_errors[task.kind] = problem or false
    end
    task.running, step.run_ended = false, true
    set_task(step, task, 'last_status', good and 'completed' or 'failed')
    if good then
      set_task(step, task, 'last_exec', step.now)
    end
    if task.touched and task.user_id then
      schedule(step, task, step.now + (task.interval or 0))
    elseif task.touched then
      set_due(step, task, step.now, task.anchor)
    end
    set_task(step, task, 'touched', nil)
    mark(step, task)
    redis.call('DEL', lock_of(step, task))
    if good and task.user_id then
      local last = step.triggers .. ':last_exec:' .. task.kind .. ':' .. task.key
      redis.call('SET', last, seconds(step.now), 'PX', math.max(DAY_MS, task.interval or 0))
    end
  end

  local function is_finished(task)
    return task.user_id and not IS_OPEN[status_of(task)]
  end

  -- A change of a sorted set, made when all tasks are written; without a score the member leaves it.
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

  -- Lets those look again that were put aside because of a task, if it may let them go on now.
  local function release(step, task)
    local is_same = task.known and IS_OPEN[status_of(task)] and task.last_exec == task.was_exec
    if task.blocks and not is_same then
      for kind in string.gmatch(task.blocks, '[^,]+') do
        local other = read_task(step, kind, task.key)
        if other then
          set_task(step, other, 'blocked', nil)
        end
      end
      set_task(step, task, 'blocks', nil)
    end
  end

  -- Where a task waits for its time: not while it runs.
  local function write_place(step, task)
    local at = task.known and not task.running and task.scheduled_at
    local was_in, is_in = task.was_blocked and 'blocked' or 'queue', task.blocked and 'blocked' or 'queue'
    if task.was_at and (not at or was_in ~= is_in) then
      sort_in(step, was_in, task.kind, task.key)
    end
    if at and (at ~= task.was_at or was_in ~= is_in) then
      sort_in(step, is_in, task.kind, task.key, seconds(at))
      if is_in == 'queue' then
        step.sooner[task.kind] = math.min(at, step.sooner[task.kind] or at)
      end
    end
  end

  local function write_hash(step, task)
    local values, gone, status = {}, {}, status_of(task)
    if task.key == '' then
      status = task.running and 'running' or 'idle'
    end
    values[1], values[2] = 'status', status
    for _, name in ipairs(task.dirty) do
      local value, written = task[name], name == 'scheduled_at' and task.due_field or name
      if value == nil then
        gone[#gone + 1] = written
      else
        values[#values + 1] = written
        values[#values + 1] = IS_TIME[name] and seconds(value) or value
      end
    end
    redis.call('HSET', task.hash, unpack(values))
    send('HDEL', task.hash, gone)
  end

  -- A finished task goes after a while. The set tells us when, so that the list of all can be kept true.
  local function write_expiry(step, task)
    local is = is_finished(task)
    if is then
      local kept = math.max(DAY_MS, task.ttl or 0, task.interval or 0)
      redis.call('PEXPIRE', task.hash, kept)
      sort_in(step, 'finished', task.kind, task.key, seconds(step.now + kept))
    elseif task.was and not IS_OPEN[task.was] then
      redis.call('PERSIST', task.hash)
    end
  end

  local function write_task(step, task)
    release(step, task)
    write_place(step, task)
    local status = task.known and status_of(task)
    if status ~= task.was then
      if task.was then
        tally(step, task.kind, task.was, -1)
      end
      if status then
        tally(step, task.kind, status, 1)
      end
    end
    if task.known then
      write_hash(step, task)
      write_expiry(step, task)
      if not task.was then
        sort_in(step, 'tasks', task.kind, task.key, 0)
      end
    else
      redis.call('DEL', task.hash, step.triggers .. ':last_exec:' .. task.kind .. ':' .. task.key)
      sort_in(step, 'tasks', task.kind, task.key)
      step.tasks[task.kind][task.key] = nil
    end
    keep_as_read(task)
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
        redis.call('HSET', own, 'last_run_at', seconds(step.now))
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

  -- Whoever waits for due times hears of one that is before all that were known. Each who wakes looks for itself, and
  -- may handle other types than this: so all should hear of it. The end of a run changes less.
  local function tell_of_due(step)
    local told
    for kind, moment in pairs(step.sooner) do
      local first = redis.call('ZRANGE', step.triggers .. ':queue:' .. kind, 0, 0, 'WITHSCORES')[2]
      told = told or not first or moment < to_ms(first)
    end
    local wanted = told and math.max(TOKENS, redis.call('HLEN', step.prefix .. ':workers')) or step.run_ended and 1
    if wanted then
      leave_tokens(step.prefix .. ':wake:_triggers', wanted, wanted)
    end
  end

  -- Writes the tasks that have changed, and what follows from that.
  function write_tasks(step)
    if not step.changed_tasks and not step.tallies then
      return
    end
    step.sorted, step.sooner = {}, {}
    local index = 0
    while step.changed_tasks and index < #step.changed_tasks do -- writing one may change others
      index = index + 1
      write_task(step, step.changed_tasks[index])
    end
    tell_of_due(step)
    write_sorted(step)
    write_tallies(step)
    step.changed_tasks, step.tallies, step.last_errors, step.run_ended = nil, nil, nil, nil
  end
end
