-- Ends: what happens when a message ends, to it and to the messages that depend on it; and how a step is
-- finished.

local KEPT = { failed = true, cancelled = true } -- a person may requeue these, so their bodies are kept

local note_run
do
  local MOST_KEPT = 20 -- runs of one message, as in `reverie.backends.views`

  -- Remembers how a run has ended, or that a message has ended without one. Completions are not remembered,
  -- because the item itself tells of its own.
  function note_run(step, user, item_id, item, outcome, problem)
    local key, kept = key_of(step, 'history', user, item_id), (item.rare.history or 0) + 1
    local text = string.format('{"outcome":"%s",%s%s"ended_at":%d}', outcome, item.run, note_error(problem), step.now)
    redis.call('RPUSH', key, text)
    if kept > MOST_KEPT then
      redis.call('LTRIM', key, -MOST_KEPT, -1)
    end
    item.rare.history = math.min(kept, MOST_KEPT)
  end
end

-- When an ended message is forgotten; nothing if it stays. A dead letter stays until a person deletes it, if it
-- has no retention.
local function expiry_of(step, item)
  local kept = step.limits.retention_ms
  if item.status == 'failed' then
    kept = step.limits.dead_retention_ms
  end
  local ended = tonumber(string.match(item.note, '"' .. item.status .. '_at":(%d+)')) or step.now
  return kept and ended + kept
end

local function drop_memos(step, user, item_id, item)
  if item.rare.memos then
    redis.call('DEL', key_of(step, 'memos', user, item_id))
    item.rare.memos = nil
  end
end

local end_item
do
  -- Unlinks a message that ends from the messages it waits for.
  local function drop_dependencies(step, user, item_id, item)
    if item.rare.waits_for then
      for _, parent in ipairs(details_of(item).depends_on) do
        redis.call('SREM', key_of(step, 'dependants', user, parent), item_id)
      end
      item.rare.waits_for = nil
    end
  end

  local function leave_queue(step, user, item_id, item)
    if item.status == 'waiting' then
      leave_place(step, user, item_id, item)
      unwatch_deadline(step, user, item_id, item)
      drop_dependencies(step, user, item_id, item)
    else
      withdraw(lane_of(step, lane_name(item)), item)
    end
    count(step, label_of(item), -1, 0)
  end

  -- Notes when an ended message is forgotten, if it does not stay.
  local function note_expiry(step, name, item)
    local expiry = expiry_of(step, item)
    if expiry then
      step.expiring[#step.expiring + 1] = expiry
      step.expiring[#step.expiring + 1] = name
      expect(step, expiry)
    end
  end

  -- Ends a message that waits or runs; the answer is its body, if that is kept. `outcome` is the outcome of its
  -- last run, if that differs from `status`. The caller finishes the step.
  function end_item(step, user, item_id, item, status, problem, outcome)
    local name = reference(user, item_id)
    local body = KEPT[status] and body_of(step, user, item_id, item)
    leave_queue(step, user, item_id, item)
    count_ended(step, label_of(item), status, 1)
    if KEPT[status] then
      note_run(step, user, item_id, item, outcome or status, problem)
      item.run = ''
    end
    local trigger = run_of(step, item_id, item)
    if trigger then
      end_run(step, trigger, status == 'completed', status == 'cancelled' and 'cancelled' or problem)
    end
    item.status, item.body = status, nil
    item.rare.due, item.rare.cancel_requested = nil, nil
    item.note = string.format('"%s_at":%d,', status, step.now)
      .. note_error(status == 'cancelled' and 'cancelled' or problem)
    if KEPT[status] then
      redis.call('ZADD', step.prefix .. ':' .. status, seq_of(item), name)
      if body then
        redis.call('HSET', step.prefix .. ':dead', name, body)
      end
    end
    if status ~= 'failed' then
      drop_memos(step, user, item_id, item)
    end
    note_expiry(step, name, item)
    if item.rare.dependants then
      table.insert(step.just_ended, { user = user, id = item_id, item = item })
    end
    return_unique(step, user, item)
    write_item(step, user, item_id, item)
    return body
  end
end

-- Counts a loss, which is a claim that ended without an outcome. After too many losses the message is buried.
-- The answer is the body of the message, if it has ended.
local function lose(step, user, item_id, item)
  local lane = lane_of(step, lane_name(item))
  end_runs(step, lane, 1, item.claim_id, lane.min_idle)
  item.claim_id, item.losses, step.lost = '', item.losses + 1, true
  if item.rare.cancel_requested then
    return end_item(step, user, item_id, item, 'cancelled')
  elseif item.losses >= step.limits.max_losses then
    return end_item(step, user, item_id, item, 'failed', 'killed_worker', 'lost')
  end
  note_run(step, user, item_id, item, 'lost')
  follow_claim(step, item_id, item)
  item.status, item.run = 'waiting', ''
  wait_from_now(step, item)
  hand_back(lane, item.entry)
  watch_deadline(step, user, item_id, item)
  write_item(step, user, item_id, item)
end

-- The first members of a sorted set whose moment has come.
local function fallen_due(step, name, limit)
  return redis.call('ZRANGE', step.prefix .. ':' .. name, '-inf', step.now, 'BYSCORE', 'LIMIT', 0, limit)
end

-- Fails messages that were not started before their deadline. The answer: their rows, and how many deadlines
-- were looked at.
local function fail_overdue(step, limit)
  local rows = {}
  types.check_key(step, step.prefix .. ':deadlines', 'zset')
  local names = fallen_due(step, 'deadlines', limit)
  local all = read_all(step, names)
  for _, found in ipairs(all) do
    types.check_item(step, found.user, found.id, found.item)
  end
  for _, found in ipairs(all) do
    local body = found.item.status == 'waiting'
      and end_item(step, found.user, found.id, found.item, 'failed', 'deadline')
    if body then
      rows[#rows + 1] = message_row(found.item, body)
    end
  end
  send('ZREM', step.prefix .. ':deadlines', names)
  return rows, #names
end

-- Removes all traces of a message's end, before the message is requeued or forgotten.
local function forget_end(step, user, item_id, item)
  local name = reference(user, item_id)
  count_ended(step, label_of(item), item.status, -1)
  redis.call('HDEL', step.prefix .. ':dead', name)
  redis.call('ZREM', step.prefix .. ':expiry', name)
  if KEPT[item.status] then
    redis.call('ZREM', step.prefix .. ':' .. item.status, name)
  end
end

-- Removes an ended message.
local function forget(step, user, item_id, item)
  forget_end(step, user, item_id, item)
  forget_unique(step, item_id, item)
  drop_memos(step, user, item_id, item)
  if item.rare.history then
    redis.call('DEL', key_of(step, 'history', user, item_id))
  end
  redis.call('HDEL', step.meta_of .. user, item_id)
  if string.find(item.details, '"task_id":', 1, true) then
    local task = encode(details_of(item).task_id)
    redis.call('SREM', step.status .. ':task_items:' .. user .. ':' .. task, item_id)
  end
  user_of(step, user).items[item_id] = false
end

local arrange
do
  -- Takes the messages that depend on these ended ones, each with its ended parents, in the order of
  -- submission.
  local function take_dependants(step, ended)
    local children, by_name = {}, {}
    for _, parent in ipairs(ended) do
      local key = key_of(step, 'dependants', parent.user, parent.id)
      local ids = redis.call('SMEMBERS', key)
      redis.call('DEL', key)
      parent.item.rare.dependants = nil
      write_item(step, parent.user, parent.id, parent.item)
      fetch_items(step, parent.user, ids)
      for _, item_id in ipairs(ids) do
        local name, item = reference(parent.user, item_id), read_item(step, parent.user, item_id)
        if item and not by_name[name] then
          by_name[name] = { user = parent.user, id = item_id, item = item, parents = {} }
          children[#children + 1] = by_name[name]
        end
        if item then
          table.insert(by_name[name].parents, parent)
        end
      end
    end
    table.sort(children, function(one, other)
      return seq_of(one.item) < seq_of(other.item)
    end)
    return children
  end

  local function parents_ended(step, child)
    local item = child.item
    if item.status ~= 'waiting' or not item.rare.waits_for then
      return
    end
    local anyway = string.find(item.details, '"if_dependency_fails":"run"', 1, true)
    for _, parent in ipairs(child.parents) do
      if parent.item.status ~= 'completed' and not anyway then
        local problem = 'dependency: ' .. parent.id .. ' ' .. parent.item.status
        end_item(step, child.user, child.id, item, 'failed', problem)
        return
      end
    end
    local left = item.rare.waits_for - #child.parents
    item.rare.waits_for = left > 0 and left or nil
    write_item(step, child.user, child.id, item)
    if left <= 0 then
      settle_in(step, child.user, child.id, item)
    end
  end

  -- Lets the messages go on that depend on ended ones, or fail with them; round by round.
  local function look_after_dependants(step)
    while #step.just_ended > 0 do
      local ended = step.just_ended
      step.just_ended = {}
      for _, child in ipairs(take_dependants(step, ended)) do
        parents_ended(step, child)
      end
    end
  end

  -- Looks after dependants, and writes items and lanes.
  function arrange(step)
    look_after_dependants(step)
    write_items(step)
    write_lanes(step)
  end
end

local finish
do
  -- Wakes waiters for the labels that have work, if a limit on all running messages may have kept them waiting.
  local function tell_of_room(step)
    if not next(step.released) or not step.limits.total_running then
      return
    end
    for _, label in ipairs(redis.call('HKEYS', step.prefix .. ':labels')) do -- the name of all has no ring
      if redis.call('EXISTS', step.prefix .. ':ready:' .. label) == 1 then
        leave_tokens(step.prefix .. ':wake:' .. label, 1)
      end
    end
  end

  -- Writes how many messages each claim still holds, and forgets a claim that holds none.
  local function release_claims(step)
    for claim_id, amount in pairs(step.released) do
      if redis.call('HINCRBY', step.prefix .. ':claims', claim_id, -amount) <= 0 then
        redis.call('HDEL', step.prefix .. ':claims', claim_id)
        redis.call('ZREM', step.prefix .. ':claimed', claim_id)
      end
    end
    step.released = {}
  end

  -- Finishes a step: does what `arrange` does, and writes everything else that the step has collected.
  function finish(step)
    arrange(step)
    write_triggers(step)
    wake_workers(step)
    tell_of_room(step)
    write_counts(step)
    release_claims(step)
    send('ZADD', step.prefix .. ':leases', step.leased)
    send('ZREM', step.prefix .. ':leases', step.unleased)
    send('ZADD', step.prefix .. ':expiry', step.expiring)
    step.leased, step.unleased, step.expiring = {}, {}, {}
  end
end
