-- Wrong types: another program may have put something else where a key of the queue belongs. A function that
-- would find out in the middle of its writes looks first, writes nothing, and names the key. `library.py` reads
-- the error. Lists of tokens are left alone if they are no lists: work does not depend on them.

do
  -- By type: a command that fails on a key of another type.
  local PROBES = {
    hash = function(key)
      return redis.pcall('HLEN', key)
    end,
    list = function(key)
      return redis.pcall('LLEN', key)
    end,
    set = function(key)
      return redis.pcall('SISMEMBER', key, '')
    end,
    stream = function(key)
      return redis.pcall('XLEN', key)
    end,
    string = function(key)
      return redis.pcall('GET', key)
    end,
    zset = function(key)
      return redis.pcall('ZSCORE', key, '')
    end,
  }
  local MOVING = { -- the keys that there are once in a queue, and that most steps write
    hash = { 'labels', 'parked', 'claims', 'offers', 'paused' },
    set = { 'unordered' },
    stream = { 'wake_horizon' },
    zset = { 'leases', 'claimed', 'resting', 'expiry' },
  }
  local ASIDE = { -- those that only messages with rules or without success need
    hash = { 'delayed', 'dead' },
    zset = { 'due', 'deadlines', 'failed', 'cancelled', 'arrivals' },
  }

  -- Raises an error if there is a key of another type; looks once in a step.
  function types.check_key(step, key, kind)
    if step.checked[key] then
      return
    end
    local answer = PROBES[kind](key)
    if type(answer) == 'table' then
      local wrong = string.find(answer.err, 'WRONGTYPE', 1, true)
      error({ err = wrong and 'WRONGKEY ' .. kind .. ' ' .. key or answer.err })
    end
    step.checked[key] = true
  end

  local function check_all(step, keys)
    for kind, names in pairs(keys) do
      for index = 1, #names do
        types.check_key(step, step.stream_of .. names[index], kind)
      end
    end
  end

  -- Checks the keys for moves of any message.
  function types.check_moving(step)
    if not step.checked_moving then
      check_all(step, MOVING)
      step.checked_moving = true
    end
  end

  -- Opens a step that moves messages.
  function types.open_writing(arguments)
    local step = open_step(arguments)
    types.check_moving(step)
    return step
  end

  -- Checks the keys for messages that are not plain.
  function types.check_aside(step)
    if not step.checked_aside then
      types.check_moving(step)
      check_all(step, ASIDE)
      step.checked_aside = true
    end
  end

  function types.check_workers(step)
    types.check_key(step, step.prefix .. ':workers', 'hash')
    types.check_key(step, step.prefix .. ':alive', 'zset')
  end

  function types.check_label(step, label)
    if not step.checked[label] then -- a key has a prefix, and is no label
      types.check_key(step, step.prefix .. ':ready:' .. label, 'zset')
      step.checked[label] = true
    end
  end

  -- Checks the keys of a lane, of its user and of its label.
  function types.check_lane(step, name)
    local user, label = string.match(name, '^([^:]*):[^:]*:([^:]*)$')
    types.check_key(step, step.meta_of .. user, 'hash')
    types.check_key(step, step.lanes_of .. user, 'hash')
    types.check_key(step, step.stream_of .. name, 'stream')
    types.check_label(step, label)
  end

  -- The index of the first of these entries whose message cannot be started, because a key has a wrong type.
  function types.first_wrong(step, lane, entries)
    for index, entry in ipairs(entries) do
      local item = entry[2][4] and read_item(step, lane.user, entry[2][4])
      local is_right, problem = pcall(function()
        if item and item.rare.rules then
          types.check_key(step, step.prefix .. ':deadlines', 'zset')
          local user_key = details_of(item).user_key
          if user_key then
            types.check_trigger(step, lane.label, user_key)
          end
        end
      end)
      if not is_right then
        step.wrong = problem.err or problem
        return index
      end
    end
  end

  -- Whether a lane may be served. If one of its keys has a wrong type, that is noted.
  function types.may_serve(step, name)
    local is_read, lane = pcall(see_lane, step, name)
    if
      not is_read
      or type(redis.pcall('XLEN', lane.key)) == 'table'
      or type(redis.pcall('HLEN', step.meta_of .. lane.user)) == 'table'
    then
      local _, problem = pcall(types.check_lane, step, name)
      step.wrong = problem.err or problem
      return false
    end
    return true
  end

  -- Checks the keys that the triggers of a type share, and the hash of one of them.
  function types.check_trigger(step, kind, key)
    for _, name in ipairs({ 'due', 'queue', 'blocked', 'tasks', 'finished' }) do
      types.check_key(step, step.triggers .. ':' .. name .. ':' .. kind, 'zset')
    end
    types.check_key(step, step.triggers .. ':statistics:' .. kind, 'hash')
    types.check_key(step, step.prefix .. ':workers', 'hash')
    local own = key == '' and ':periodic:' .. kind or ':task:' .. kind .. ':' .. key
    types.check_key(step, step.triggers .. own, 'hash')
    types.check_key(step, step.triggers .. ':task_type:' .. kind, 'hash')
  end

  -- Checks what a row of `submit.lua` needs.
  function types.check_message(step, row)
    local user, item_id, name, task = row[1], row[2], row[3], row[6]
    local unique, parents, user_key = row[8], row[10], row[11]
    types.check_aside(step)
    types.check_lane(step, name)
    types.check_key(step, key_of(step, 'history', user, item_id), 'list')
    if task then
      types.check_key(step, step.status .. ':task_items:' .. user .. ':' .. task, 'set')
    end
    if unique then
      types.check_key(step, unique_key(step, name, unique), 'zset')
    end
    for _, parent in ipairs(parents or {}) do
      types.check_key(step, key_of(step, 'dependants', user, parent), 'set')
    end
    if user_key then
      types.check_trigger(step, string.match(name, '[^:]*$'), user_key)
    end
  end

  -- Checks the keys that belong to an item alone, or that list it.
  function types.check_own(step, user, item_id, item)
    if item.rare.history then
      types.check_key(step, key_of(step, 'history', user, item_id), 'list')
    end
    if item.rare.memos then
      types.check_key(step, key_of(step, 'memos', user, item_id), 'hash')
    end
    if string.find(item.details, '"task_id":', 1, true) then
      local task = encode(details_of(item).task_id)
      types.check_key(step, step.status .. ':task_items:' .. user .. ':' .. task, 'set')
    end
    local unique = unique_of(step, item)
    if unique then
      types.check_key(step, unique, 'zset')
    end
  end

  -- Checks what the end of an item needs, and the ends of those that depend on it.
  function types.check_item(step, user, item_id, item)
    types.check_aside(step)
    types.check_lane(step, lane_name(item))
    types.check_key(step, key_of(step, 'history', user, item_id), 'list')
    types.check_own(step, user, item_id, item)
    local details = (item.rare.rules or item.rare.waits_for) and details_of(item)
    if details and details.user_key then
      types.check_trigger(step, label_of(item), details.user_key)
    end
    for _, parent in ipairs(details and details.depends_on or {}) do
      types.check_key(step, key_of(step, 'dependants', user, parent), 'set')
    end
    if item.rare.dependants then
      local key = key_of(step, 'dependants', user, item_id)
      local is_new = not step.checked[key]
      types.check_key(step, key, 'set')
      for _, child_id in ipairs(is_new and redis.call('SMEMBERS', key) or {}) do
        local child = read_item(step, user, child_id)
        if child then
          types.check_item(step, user, child_id, child)
        end
      end
    end
  end
end
