-- Settling: only the holder of a claim may settle it. A settlement is applied whole or not at all.
--
-- Completions without follow-ups come in groups of one lane and one claim: lane, claim id, item ids. Any
-- other settlement is a row: user, item id, claim id, lane, move, whether it was an attempt, delay, error,
-- follow-ups, whether its effects have met a conflict.

local OF_MEMORY = 'memory:' -- as in `reverie.backends.moves`
local ENDS = { complete = 'completed', cancel = 'cancelled', bury = 'failed' }

-- Counts a conflict, and drops the memos of steps that read memory.
local function note_conflict(step, user, item_id, item)
  item.rare.conflicts = (item.rare.conflicts or 0) + 1
  if not item.rare.memos then
    return
  end
  local key, dropped = key_of(step, 'memos', user, item_id), {}
  for _, name in ipairs(redis.call('HKEYS', key)) do
    if string.sub(name, 1, #OF_MEMORY) == OF_MEMORY then
      dropped[#dropped + 1] = name
    end
  end
  send('HDEL', key, dropped)
  if redis.call('EXISTS', key) == 0 then
    item.rare.memos = nil
  end
end

-- Lets a message wait again. With a delay, one of an unordered lane waits aside and lets others pass; in an
-- ordered lane it keeps its place.
local function wait_again(step, lane, item, row)
  local user, item_id, delay, problem = row[1], row[2], row[7], row[8]
  local body = delay > 0 and not lane.ordered and body_of(step, user, item_id, item)
  if row[6] or problem then
    note_run(step, user, item_id, item, row[6] and 'retry' or 'handed_back', problem)
  end
  follow_claim(step, item_id, item)
  item.status, item.run, item.note = 'waiting', '', note_error(problem)
  if body then
    item.body, item.rare.due = body, step.now + delay
    withdraw(lane, item)
    settle_in(step, user, item_id, item)
  else
    wait_from_now(step, item)
    hand_back(lane, item.entry)
  end
  watch_deadline(step, user, item_id, item)
end

local function end_claim(step, item, row)
  local user, item_id, move, delay = row[1], row[2], row[5], row[7]
  local lane = lane_of(step, row[4])
  local waits = move == 'retry' or move == 'release'
  end_runs(step, lane, 1, item.claim_id, math.max(lane.min_idle, waits and lane.ordered and delay or 0))
  item.claim_id = ''
  item.attempts = item.attempts + (row[6] and 1 or 0)
  if move == 'retry' then
    item.rare.conflicts = nil
  elseif row[10] then
    note_conflict(step, user, item_id, item)
  end
  if item.rare.cancel_requested and move ~= 'complete' then
    end_item(step, user, item_id, item, 'cancelled', row[8])
  elseif waits then
    wait_again(step, lane, item, row)
    write_item(step, user, item_id, item)
  else
    end_item(step, user, item_id, item, ENDS[move], row[8])
  end
end

-- Applies one settlement. The answer is one word, and the unknown parent of its follow-ups if there is one.
local function settle(step, row)
  local user, item_id, move, follow_ups = row[1], row[2], row[5], row[9]
  local item = held_item(step, user, item_id, row[3])
  if not item then
    return 'stale'
  end
  local parent = unknown_parent(step, follow_ups)
  if parent then
    return 'rejected', parent
  end
  step.unleased[#step.unleased + 1] = reference(user, item_id)
  if move == 'lose' then
    lose(step, user, item_id, item)
  else
    end_claim(step, item, row)
  end
  if move == 'complete' and #follow_ups > 0 then
    fetch_rows(step, follow_ups)
    insert_all(step, follow_ups)
  end
  return 'applied'
end

-- Completes the messages of a group whose items are plain; the answer has the indexes of the others.
local function complete_plain(step, lane, claim_id, item_ids)
  local key, values, others, amount = step.meta_of .. lane.user, {}, {}, 0
  local texts = redis.call('HMGET', key, unpack(item_ids))
  local expiring, unleased = step.expiring, step.unleased
  local expires, leases = #expiring, #unleased
  for index = 1, #item_ids do
    local item_id = item_ids[index]
    local text, entry = plain_completed(step, texts[index] or '', claim_id)
    if text then
      local name = reference(lane.user, item_id)
      values[2 * amount + 1], values[2 * amount + 2] = item_id, text
      remove_later(lane, entry)
      amount = amount + 1
      unleased[leases + amount] = name
      expiring[expires + 2 * amount - 1], expiring[expires + 2 * amount] = step.expiry, name
    else
      others[#others + 1] = index
    end
  end
  if amount > 0 then
    redis.call('HSET', key, unpack(values))
    end_runs(step, lane, amount, claim_id, lane.min_idle)
    count(step, lane.label, -amount, 0)
    count_ended(step, lane.label, 'completed', amount)
  end
  return others
end

-- Completes groups; the answer has the indexes, over all groups, of messages whose claim is lost.
local function complete_all(step, groups)
  local stale, place = {}, -1
  prepare_completions(step)
  step.expiry = string.format('%d', step.now + step.limits.retention_ms)
  if #groups > 0 then
    expect(step, step.now + step.limits.retention_ms)
  end
  for _, group in ipairs(groups) do
    local name, claim_id, item_ids = unpack(group)
    local lane = lane_of(step, name)
    for _, index in ipairs(complete_plain(step, lane, claim_id, item_ids)) do
      local row = { lane.user, item_ids[index], claim_id, name, 'complete', true, 0, nil, {} }
      if settle(step, row) == 'stale' then
        stale[#stale + 1] = place + index
      end
    end
    place = place + #item_ids
  end
  return stale
end

local function settle_call(_, arguments)
  local step = open_step(arguments)
  local states, unknown = {}, {}
  local stale = complete_all(step, step.request.completed)
  fetch_rows(step, step.request.settlements)
  for index, row in ipairs(step.request.settlements) do
    local state, parent = settle(step, row)
    states[index] = state
    if parent then
      unknown[#unknown + 1] = { index - 1, parent }
    end
  end
  finish(step)
  tell_horizon(step)
  return cmsgpack.pack({ step.now, states, unknown, stale })
end

redis.register_function({ function_name = LIBRARY .. '_settle', callback = settle_call, flags = { 'allow-oom' } })
