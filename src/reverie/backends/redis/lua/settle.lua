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
  if #follow_ups > 0 and (item.status == 'completed' or item.status == 'failed') then
    fetch_rows(step, follow_ups)
    insert_all(step, follow_ups)
  end
  return 'applied'
end

-- Reads the lane, the stream and the items of a group, before anything is written: texts of the items.
local function read_group(step, group)
  local known, lane = pcall(lane_of, step, group.name)
  local texts = known and redis.pcall('HMGET', step.meta_of .. lane.user, unpack(group.item_ids))
  local length = known and redis.pcall('XLEN', lane.key)
  if not known or texts.err or type(length) == 'table' then
    types.check_lane(step, group.name) -- names the key
  end
  types.check_label(step, lane.label)
  lane.length, group.lane = length, lane
  return texts
end

-- Prepares to complete the messages of a group. Those whose items are not plain are left to `settle`.
local function prepare_group(step, name, claim_id, item_ids)
  local group = { name = name, claim_id = claim_id, item_ids = item_ids, values = {}, others = {}, amount = 0 }
  local texts = read_group(step, group)
  local user, values, amount = group.lane.user, group.values, 0
  local expiring, unleased = step.expiring, step.unleased
  local expires, leases = #expiring, #unleased
  for index = 1, #item_ids do
    local item_id = item_ids[index]
    local own = reference(user, item_id)
    local text, entry = plain_completed(step, texts[index] or '', claim_id)
    if text and not step.completing[own] then
      values[2 * amount + 1], values[2 * amount + 2] = item_id, text
      remove_later(group.lane, entry)
      amount = amount + 1
      unleased[leases + amount] = own
      expiring[expires + 2 * amount - 1], expiring[expires + 2 * amount] = step.expiry, own
      step.completing[own] = true
    else
      group.others[#group.others + 1] = index
      local item = not text and read_item(step, user, item_id)
      if item then
        types.check_item(step, user, item_id, item)
      end
    end
  end
  group.amount = amount
  return group
end

-- Completes groups; the answer has the indexes, over all groups, of messages whose claim is lost.
local function complete_all(step, groups)
  local stale, place = {}, -1
  if #groups > 0 then
    expect(step, step.now + step.limits.retention_ms)
  end
  for _, group in ipairs(groups) do
    local lane, amount = group.lane, group.amount
    if amount > 0 then
      redis.call('HSET', step.meta_of .. lane.user, unpack(group.values))
      end_runs(step, lane, amount, group.claim_id, lane.min_idle)
      count(step, lane.label, -amount, 0)
      count_ended(step, lane.label, 'completed', amount)
    end
    for _, index in ipairs(group.others) do
      local row = { lane.user, group.item_ids[index], group.claim_id, group.name, 'complete', true, 0, nil, {} }
      if settle(step, row) == 'stale' then
        stale[#stale + 1] = place + index
      end
    end
    place = place + #group.item_ids
  end
  return stale
end

-- Checks the keys of settlements, and of the messages that follow from them.
local function check_settlements(step, rows)
  for _, row in ipairs(rows) do
    types.check_lane(step, row[4])
  end
  fetch_rows(step, rows)
  for _, row in ipairs(rows) do
    local item = read_item(step, row[1], row[2])
    if item then
      types.check_item(step, row[1], row[2], item)
    end
    for _, message in ipairs(row[9]) do
      types.check_message(step, message)
    end
  end
end

local function settle_call(_, arguments)
  local step = types.open_writing(arguments)
  local states, unknown, groups = {}, {}, {}
  prepare_completions(step)
  step.expiry = string.format('%d', step.now + step.limits.retention_ms)
  step.completing = {} -- by reference: the messages that are completed
  for index, group in ipairs(step.request.completed) do
    groups[index] = prepare_group(step, unpack(group))
  end
  check_settlements(step, step.request.settlements)
  local stale = complete_all(step, groups)
  for own in pairs(#step.request.settlements > 0 and step.completing or {}) do
    local user, item_id = split_reference(own)
    user_of(step, user).items[item_id] = nil -- it was read before its completion
  end
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
