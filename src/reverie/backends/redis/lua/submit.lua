-- Submitting: a message takes its place at the end of its lane, or waits aside.
--
-- A message is a row of user, item id, lane, details and body. These follow, if it has any of them: task, due
-- time, unique key, unique policy, ids of the messages it depends on, user key of the trigger whose run it
-- is.
--
-- Plain messages only wait for their turn, and have none of these but a task. They come in one flat list: of
-- each the first five fields and its task, which may be empty.

local PLAIN = 6 -- fields of one plain message
local FEW = 10 -- messages: a submit of no more reads their lanes first, and then looks for a waiting worker

local new_item, insert_all, plain_rows, may_come_plain, insert_all_plain
do
  -- Whether a message waits for a later time than this. The time of a retry holds: a message that was claimed
  -- before may not come sooner.
  local function may_come_sooner(item, due)
    return item.started_at == 'null' and (item.rare.due or 0) > due
  end

  -- Applies the unique policy of a new message. The answer is the holder of the unique key that replaces the
  -- new message, if any.
  local function make_way(step, message)
    local user, policy = message[1], message[9]
    local holders = holders_of(step, unique_key(step, message[3], message[8]), user)
    local last = holders.waiting[#holders.waiting]
    if policy == 'replace' then
      for _, holder in ipairs(holders.waiting) do
        end_item(step, user, holder.id, holder.item, 'cancelled')
      end
    elseif (policy == 'extend' or policy == 'sooner') and last then
      local due = math.max(message[7] or step.now, step.now)
      if policy == 'extend' or may_come_sooner(last.item, due) then
        reschedule(step, user, last.id, last.item, due)
      end
      return last.id
    elseif policy == 'skip' or #holders.in_progress == 0 then
      last = last or holders.in_progress[#holders.in_progress] or holders.ended[#holders.ended]
      return last and last.id
    end
  end

  -- Whether a message has a deadline or a unique key, or is the run of a trigger.
  local function has_rules(message)
    return message[8] or message[11] or string.find(message[4], '"deadline":', 1, true)
  end

  function new_item(step, message, seq)
    return {
      status = 'waiting',
      attempts = 0,
      losses = 0,
      submitted_at = step.now,
      started_at = 'null',
      entry = '',
      claim_id = '',
      rare = { due = message[7], rules = has_rules(message) and 1 or nil },
      run = '',
      note = '',
      details = string.format('%s,"seq":%d}', message[4], seq),
      body = message[5],
      lane = message[3],
      seq = seq,
    }
  end

  -- The answer for a message whose id is known: whether it is the same message, or another with the same id.
  local function answer_again(known, details)
    return fingerprint_in(known.details) == fingerprint_in(details) and 'duplicate' or 'conflict'
  end

  -- Keeps a message, which gets its place later. The answer is one word, and the holder of its unique key if
  -- that replaces it.
  local function insert(step, message, seq)
    local user, item_id, task = message[1], message[2], message[6]
    local known = known_item(step, user, item_id)
    if known then
      return answer_again(known, message[4])
    end
    local holder = message[8] and make_way(step, message)
    if holder then
      return 'duplicate', holder
    end
    local item = new_item(step, message, seq)
    write_item(step, user, item_id, item)
    count(step, label_of(item), 1, 0)
    if message[8] then
      take_unique(step, item_id, item)
    end
    watch_deadline(step, user, item_id, item)
    if task then
      redis.call('SADD', step.status .. ':task_items:' .. user .. ':' .. task, item_id)
    end
    return 'accepted'
  end

  -- Lets a message wait for those it depends on; the end of the step sees to those that have ended already. A
  -- parent may be missing, because the holder of its unique key has replaced it.
  local function link(step, message, item)
    local user, item_id, waits_for = message[1], message[2], 0
    for _, parent_id in ipairs(message[10]) do
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

  -- Gives new messages their places, after all of them are linked: each may depend on one that comes after
  -- it.
  local function settle_in_all(step, new)
    for _, message in ipairs(new) do
      if message[10] then
        link(step, message, read_item(step, message[1], message[2]))
      end
    end
    for _, message in ipairs(new) do
      settle_in(step, message[1], message[2], read_item(step, message[1], message[2]))
    end
  end

  -- Accepts messages in their order. The answer has those that were not accepted: index, one word, and the
  -- holder of the unique key if that replaces the message. The caller has fetched the items.
  function insert_all(step, messages)
    local others, new = {}, {}
    if #messages == 0 then
      return others
    end
    local seq = take_numbers(step, #messages)
    for index, message in ipairs(messages) do
      local word, other = insert(step, message, seq + index)
      if word == 'accepted' then
        new[#new + 1] = message
      else
        others[#others + 1] = { index - 1, word, other }
      end
    end
    settle_in_all(step, new)
    return others
  end

  -- The rows of plain messages.
  function plain_rows(plain)
    local rows = {}
    for first = 1, #plain, PLAIN do
      local row = { unpack(plain, first, first + PLAIN - 1) }
      row[PLAIN] = row[PLAIN] ~= '' and row[PLAIN] or nil
      rows[#rows + 1] = row
    end
    return rows
  end

  -- Whether plain messages can be accepted without looking which of them are new: no limit needs that.
  function may_come_plain(step, plain)
    local limits = step.limits
    if limits.refuse_unhandled or limits.total_rate or limits.tenant_depth or limits.tenant_rate then
      return false
    end
    if not has_room_for(step, #new_labels(step)) then
      return false
    end
    return not limits.total_depth or total(step).depth + #plain / PLAIN <= limits.total_depth
  end

  -- Whether the lanes of a label are ordered. They are, unless a claim has said otherwise.
  local function is_ordered(step, label)
    local known = step.orders[label]
    if known == nil then
      known = redis.call('SISMEMBER', step.prefix .. ':unordered', label) == 0
      step.orders[label] = known
    end
    return known
  end

  -- A lane that this step has begun, or begins now because new lanes are likely. They are likely in a submit
  -- of few messages, and after a message that was the first of its lane.
  local function begun_lane(step, name)
    local lane = step.lanes[name]
    if not lane and step.likely_new then
      step.likely_new = not see_lane(step, name).text
      lane = step.likely_new and step.lanes[name]
    end
    return lane
  end

  -- Puts a new plain message at the end of its lane; the answer is the id of its entry. An ordered lane that
  -- has a stream needs no more than the entry: it is in its ring already, or will join it.
  local function place_plain(step, name, item_id, body, entry, label)
    if not begun_lane(step, name) and is_ordered(step, label) then
      local placed =
        redis.pcall('XADD', step.stream_of .. name, 'NOMKSTREAM', entry, 'message', body, 'item_id', item_id)
      if placed and not placed.err then
        return placed
      end
      step.likely_new = not placed
    end
    return place(lane_of(step, name), item_id, body, entry)
  end

  -- Keeps the plain message at `first` in the list, unless its id is known. The answer is one word.
  local function insert_plain(step, plain, first, number)
    local user, item_id, name, details, body, task = unpack(plain, first, first + PLAIN - 1)
    local label = step.request.label or string.match(name, '[^:]*$')
    if not step.new[label] then
      types.check_label(step, label)
    end
    local key, entry = step.meta_of .. user, step.moment .. number
    if redis.call('HSETNX', key, item_id, plain_waiting(step.beginning, entry, details, number)) == 0 then
      return answer_again(parse_item(redis.call('HGET', key, item_id)), details)
    end
    step.unplaced = first
    if task ~= '' then
      redis.call('SADD', step.status .. ':task_items:' .. user .. ':' .. task, item_id)
    end
    local placed = place_plain(step, name, item_id, body, entry, label)
    if placed ~= entry then
      redis.call('HSET', key, item_id, plain_waiting(step.beginning, placed, details, number))
    end
    step.unplaced = nil
    step.new[label] = (step.new[label] or 0) + 1
    return 'accepted'
  end

  -- Removes what was written of the plain message at `first`, because one of its keys has a wrong type; the answer is
  -- the error, which names that key. The messages before it are kept.
  local function take_back_plain(step, plain, first, problem)
    local user, item_id, name, _, _, task = unpack(plain, first, first + PLAIN - 1)
    if step.unplaced == first then
      redis.call('HDEL', step.meta_of .. user, item_id)
      redis.pcall('SREM', step.status .. ':task_items:' .. user .. ':' .. task, item_id)
    end
    local lane = step.lanes[name]
    for index = #step.touched, 1, -1 do
      if step.touched[index] == lane and not lane.text then
        table.remove(step.touched, index)
      end
    end
    local is_right, named = pcall(function()
      types.check_lane(step, name)
      if task ~= '' then
        types.check_key(step, step.status .. ':task_items:' .. user .. ':' .. task, 'set')
      end
    end)
    return is_right and problem or named
  end

  -- Accepts plain messages as `insert_all` does, but without fetching items first. Most submits have one
  -- label. A wrong type ends this early: the caller finishes the step and raises `step.problem`.
  function insert_all_plain(step, plain)
    local others, amount = {}, #plain / PLAIN
    local seq = take_numbers(step, amount)
    step.new, step.orders, step.likely_new = {}, {}, amount <= FEW
    step.beginning, step.moment = plain_beginning(step), string.format('%d-', step.now)
    local index = 1
    local is_right, problem = pcall(function()
      while index <= amount do
        local word = insert_plain(step, plain, (index - 1) * PLAIN + 1, string.format('%d', seq + index))
        if word ~= 'accepted' then
          others[#others + 1] = { index - 1, word }
        end
        index = index + 1
      end
    end)
    if not is_right then
      step.problem = take_back_plain(step, plain, (index - 1) * PLAIN + 1, problem)
    end
    for label, more in pairs(step.new) do
      count(step, label, more, 0)
    end
    return others
  end
end
