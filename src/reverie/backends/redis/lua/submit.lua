-- Submitting: a message takes its place at the end of its lane, or waits aside.
--
-- A message is a row of user, item id, lane, details and body; where there is one of these, also task, due, unique
-- key, what happens if that is taken, ids of the messages it depends on, user key of the task whose run it is.
--
-- Plain messages, of which nothing is asked but that they wait for their turn, come in one list: of each the first five
-- of these and its task, which may be empty.

local PLAIN = 6 -- how many parts of the list belong to one of them
local FEW = 10 -- messages of a submit that looks at each lane before, and for a worker that waits after

local new_item, insert_all, plain_rows, may_come_plain, insert_all_plain
do
  -- Whether a message waits for a later time than this, and not for that of a retry: then it was never claimed.
  local function may_come_sooner(item, due)
    return item.started_at == 'null' and (item.rare.due or 0) > due
  end

  -- What happens to those that have the unique key; the one that stands for the new message, if there is one.
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

  -- Whether a message has a deadline or a unique key, or is the run of a task.
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

  -- The word for a message whose id is known: it comes again, or another has its id.
  local function answer_again(known, details)
    return fingerprint_in(known.details) == fingerprint_in(details) and 'duplicate' or 'conflict'
  end

  -- Keeps a message, which then looks for its place. The answer is one word, and the item that stands for it.
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

  -- Lets a message wait for those it depends on, as far as they have not ended. One of them may be missing:
  -- another has stood for it because of its unique key.
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

  -- Lets new messages find their place: each may depend on one that comes after it.
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

  -- Accepts messages in their order. The answer has those that were not, each as its place, one word, and the item
  -- that stands for it, where that is another. Who calls this has fetched them.
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

  -- Whether plain messages need no more than to wait for their turn: no limit asks how many of them are new.
  function may_come_plain(step, plain)
    local limits = step.limits
    if limits.refuse_unhandled or limits.total_rate or limits.tenant_depth or limits.tenant_rate then
      return false
    end
    return not limits.total_depth or total(step).depth + #plain / PLAIN <= limits.total_depth
  end

  -- Whether the lanes of a label are ordered, as far as anybody knows.
  local function is_ordered(step, label)
    local known = step.orders[label]
    if known == nil then
      known = redis.call('SISMEMBER', step.prefix .. ':unordered', label) == 0
      step.orders[label] = known
    end
    return known
  end

  -- A lane that this step has begun, or now begins, where new ones are likely: of few messages most are the first of
  -- their lane, and where one was, the next may be.
  local function begun_lane(step, name)
    local lane = step.lanes[name]
    if not lane and step.likely_new then
      step.likely_new = not see_lane(step, name).text
      lane = step.likely_new and step.lanes[name]
    end
    return lane
  end

  -- Puts a plain message that is new at the end of its lane. A lane that has a stream has somebody who sees to it that
  -- it is served, if it is an ordered one. The answer is the id of its entry.
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

  -- Keeps the plain message that begins here, unless it is known. The answer is one word.
  local function insert_plain(step, plain, first, number)
    local user, item_id, name, details, body, task = unpack(plain, first, first + PLAIN - 1)
    local label = step.request.label or string.match(name, '[^:]*$')
    local key, entry = step.meta_of .. user, step.moment .. number
    if redis.call('HSETNX', key, item_id, plain_waiting(step.beginning, entry, details, number)) == 0 then
      return answer_again(parse_item(redis.call('HGET', key, item_id)), details)
    end
    local placed = place_plain(step, name, item_id, body, entry, label)
    if placed ~= entry then
      redis.call('HSET', key, item_id, plain_waiting(step.beginning, placed, details, number))
    end
    if task ~= '' then
      redis.call('SADD', step.status .. ':task_items:' .. user .. ':' .. task, item_id)
    end
    step.new[label] = (step.new[label] or 0) + 1
    return 'accepted'
  end

  -- The same as `insert_all` for plain messages, of which none needs to be fetched. Most submits have one label.
  function insert_all_plain(step, plain)
    local others, amount = {}, #plain / PLAIN
    local seq = take_numbers(step, amount)
    step.new, step.orders, step.likely_new = {}, {}, amount <= FEW
    step.beginning, step.moment = plain_beginning(step), string.format('%d-', step.now)
    for index = 1, amount do
      local word = insert_plain(step, plain, (index - 1) * PLAIN + 1, string.format('%d', seq + index))
      if word ~= 'accepted' then
        others[#others + 1] = { index - 1, word }
      end
    end
    for label, more in pairs(step.new) do
      count(step, label, more, 0)
    end
    return others
  end
end
