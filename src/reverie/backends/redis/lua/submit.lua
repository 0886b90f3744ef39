-- Submitting: a message takes its place at the end of its lane, or waits aside.
--
-- A message is a row of user, item id, lane, task, due, fingerprint, details and body; where there is one of these,
-- also unique key, what happens if that is taken, ids of the messages it depends on.

-- What happens to those that have the unique key; the one that stands for the new message, if there is one.
local function make_way(step, message)
  local user, policy = message[1], message[10]
  local holders = holders_of(step, unique_key(step, message[3], message[9]), user)
  local last = holders.waiting[#holders.waiting]
  if policy == 'replace' then
    for _, holder in ipairs(holders.waiting) do
      end_item(step, user, holder.id, holder.item, 'cancelled')
    end
  elseif policy == 'extend' and last then
    reschedule(step, user, last.id, last.item, message[5] or step.now)
    return last.id
  elseif policy ~= 'extend' or #holders.in_progress == 0 then
    last = last or holders.in_progress[#holders.in_progress] or holders.ended[#holders.ended]
    return last and last.id
  end
end

-- Whether a message has a deadline or a unique key.
local function has_rules(message)
  return message[9] or string.find(message[7], '"deadline":', 1, true)
end

local function new_item(step, message, seq)
  return {
    status = 'waiting',
    attempts = 0,
    losses = 0,
    submitted_at = step.now,
    started_at = 'null',
    entry = '',
    claim_id = '',
    rare = { due = message[5], rules = has_rules(message) and 1 or nil },
    run = '',
    note = '',
    details = string.format('%s,"seq":%d}', message[7], seq),
    body = message[8],
    lane = message[3],
    seq = seq,
  }
end

-- Keeps a message, which then looks for its place. The answer is one word, and the item that stands for it.
local function insert(step, message, seq)
  local user, item_id, lane, task = unpack(message, 1, 4)
  local known = known_item(step, user, item_id)
  if known then
    return fingerprint_of(known) == message[6] and 'duplicate' or 'conflict'
  end
  local holder = message[9] and make_way(step, message)
  if holder then
    return 'duplicate', holder
  end
  local item = new_item(step, message, seq)
  write_item(step, user, item_id, item)
  count(step, label_of(item), 1, 0)
  if message[9] then
    take_unique(step, item_id, item)
  end
  watch_deadline(step, user, item_id, item)
  if task then
    redis.call('SADD', step.status .. ':task_items:' .. user .. ':' .. task, item_id)
  end
  return 'accepted'
end

-- Lets a message wait for those it depends on, as far as they have not ended. One of them may be missing:
-- another has stood for it because of its unique key.
local function link(step, message, item)
  local user, item_id, waits_for = message[1], message[2], 0
  for _, parent_id in ipairs(message[11]) do
    local parent = item.status == 'waiting' and read_item(step, user, parent_id)
    if parent then
      redis.call('SADD', key_of(step, 'dependants', user, parent_id), item_id)
      parent.rare.dependants, waits_for = 1, waits_for + 1
      write_item(step, user, parent_id, parent)
      if KEPT[parent.status] or parent.status == 'completed' then
        table.insert(step.just_ended, { user = user, id = parent_id, item = parent })
      end
    end
  end
  item.rare.waits_for = waits_for > 0 and waits_for or nil
end

-- Lets new messages find their place: each may depend on one that comes after it.
local function settle_in_all(step, new)
  for _, message in ipairs(new) do
    if message[11] then
      link(step, message, read_item(step, message[1], message[2]))
    end
  end
  for _, message in ipairs(new) do
    settle_in(step, message[1], message[2], read_item(step, message[1], message[2]))
  end
end

-- Accepts messages in their order. The answer has one word for each, and pairs of the place of a message and
-- the item that stands for it, where that is another. Who calls this has fetched them.
local function insert_all(step, messages)
  local answers, others, new = {}, {}, {}
  if #messages == 0 then
    return answers, others
  end
  local seq = take_numbers(step, #messages)
  for index, message in ipairs(messages) do
    local word, other = insert(step, message, seq + index)
    answers[index] = word
    if word == 'accepted' then
      new[#new + 1] = message
    elseif other then
      others[#others + 1] = { index - 1, other }
    end
  end
  settle_in_all(step, new)
  return answers, others
end

-- Whether nothing is asked of a message but that it waits for its turn.
local function is_plain(message)
  return not (message[5] or message[11] or has_rules(message))
end

-- Whether all of these are plain, and no limit asks how many of them are new.
local function all_plain(step, messages)
  local limits = step.limits
  if limits.refuse_unhandled or limits.total_rate or limits.tenant_depth or limits.tenant_rate then
    return false
  elseif limits.total_depth and total(step).depth + #messages > limits.total_depth then
    return false
  end
  for _, message in ipairs(messages) do
    if not is_plain(message) then
      return false
    end
  end
  return true
end

-- Keeps a plain message and puts it at the end of its lane. The answer is one word.
local function insert_plain(step, message, seq)
  local user, item_id, name, task, _, fingerprint, details, body = unpack(message, 1, 8)
  local key, entry = step.meta_of .. user, step.now_text .. '-' .. seq
  if redis.call('HSETNX', key, item_id, plain_waiting(step, entry, details, seq)) == 0 then
    local known = fingerprint_of(parse_item(redis.call('HGET', key, item_id)))
    return known == fingerprint and 'duplicate' or 'conflict'
  end
  local field, lane, placed = string.sub(name, #user + 2), step.lanes[name], nil
  local text = not lane and redis.call('HGET', step.lanes_of .. user, field)
  if text == '' then
    placed = append(step.stream_of .. name, item_id, body, entry) -- who was there before sees to it that it is served
  else
    lane = lane or read_lane(step, name, text)
    touch(step, lane)
    placed = place(lane, item_id, body, entry)
  end
  if placed ~= entry then
    redis.call('HSET', key, item_id, plain_waiting(step, placed, details, seq))
  end
  local label = string.match(field, ':(.*)$')
  step.new[label] = (step.new[label] or 0) + 1
  if task then
    redis.call('SADD', step.status .. ':task_items:' .. user .. ':' .. task, item_id)
  end
  return 'accepted'
end

-- The same as `insert_all` for plain messages, of which none needs to be fetched.
local function insert_all_plain(step, messages)
  local answers, seq = {}, take_numbers(step, #messages)
  step.now_text, step.new = string.format('%d', step.now), {}
  for index, message in ipairs(messages) do
    answers[index] = insert_plain(step, message, seq + index)
  end
  for label, amount in pairs(step.new) do
    count(step, label, amount, 0)
  end
  return answers, {}
end
