-- Reindex: checks that every item has its body and is in its indexes. Index members that point to nothing are
-- removed.

local ITEMS = 500 -- items looked at in one call
local BODIES = 100 -- bodies that wait aside, looked at in one call
local check = {} -- all checks in one table, because a Lua text may have few local names

-- Checks that an index has an item. With `timed`, the score is a moment at which something falls due.
function check.index(step, index, name, score, timed)
  if not redis.call('ZSCORE', step.prefix .. ':' .. index, name) then
    mend(step, index, function()
      redis.call('ZADD', step.prefix .. ':' .. index, score, name)
      if timed then
        expect(step, score)
      end
    end)
  end
end

-- The known parents of a message, and whether it is linked to all of them that have not ended.
function check.parents_of(step, user, item_id, item)
  local parents, open, linked = {}, 0, true
  for _, parent_id in ipairs(details_of(item).depends_on or {}) do
    local parent = read_item(step, user, parent_id)
    if parent then
      table.insert(parents, { user = user, id = parent_id, item = parent })
    end
    if parent and OPEN[parent.status] then
      open = open + 1
      local key = key_of(step, 'dependants', user, parent_id)
      linked = linked and parent.rare.dependants and redis.call('SISMEMBER', key, item_id) == 1
    end
  end
  return parents, linked and open == item.rare.waits_for
end

-- Links a message to its parents again. The end of the step sees to parents that have ended.
function check.parents(step, user, item_id, item)
  local parents, whole = check.parents_of(step, user, item_id, item)
  if whole then
    return
  end
  mend(step, 'dependants', function()
    for _, parent in ipairs(parents) do
      redis.call('SADD', key_of(step, 'dependants', user, parent.id), item_id)
      parent.item.rare.dependants = 1
      write_item(step, user, parent.id, parent.item)
      if not OPEN[parent.item.status] then
        table.insert(step.just_ended, parent)
      end
    end
    item.rare.waits_for = #parents > 0 and #parents or nil
    write_item(step, user, item_id, item)
    settle_in(step, user, item_id, item)
  end)
end

function check.aside(step, user, item_id, item)
  local member = due_member(user, item_id, item)
  if item.rare.waits_for then
    check.parents(step, user, item_id, item)
  elseif not item.rare.due then
    mend(step, 'due', function()
      settle_in(step, user, item_id, item)
    end)
  elseif tonumber(redis.call('ZSCORE', step.prefix .. ':due', member) or nil) ~= item.rare.due then
    mend(step, 'due', function()
      note_due(step, user, item_id, item)
    end)
  end
end

-- Clears the entry in an item if the stream does not have it: at its end, the message would not be taken from
-- aside.
function check.unlink(step, user, item_id, item)
  if item.entry ~= '' then
    mend(step, 'unlinked', function()
      item.entry = ''
      write_item(step, user, item_id, item)
    end)
  end
end

-- Notes a message whose body is lost, which can never run. It waits until a person decides about it, unless
-- the request is to bury it.
function check.lose_body(step, user, item_id, item, found)
  check.unlink(step, user, item_id, item)
  table.insert(found.lost, { user, item_id })
  if step.request.bury then
    mend(step, 'buried', function()
      end_item(step, user, item_id, item, 'failed', 'body lost')
    end)
  end
end

function check.waiting(step, user, item_id, item, found)
  if not is_in_lane(step, item) then
    if has_body_aside(step, user, item_id) then
      check.unlink(step, user, item_id, item)
      check.aside(step, user, item_id, item)
    else
      check.lose_body(step, user, item_id, item, found)
    end
  end
  local deadline = item.status == 'waiting' and deadline_of(item)
  if deadline then
    check.index(step, 'deadlines', reference(user, item_id), deadline, true)
  end
end

function check.ended(step, user, item_id, item)
  local name, status = reference(user, item_id), item.status
  if KEPT[status] then
    check.index(step, status, name, seq_of(item))
  end
  local expiry = expiry_of(step, item)
  if expiry then
    check.index(step, 'expiry', name, expiry, true)
  end
end

function check.task(step, user, item_id, item)
  if string.find(item.details, '"task_id":', 1, true) then
    local key = step.status .. ':task_items:' .. user .. ':' .. encode(details_of(item).task_id)
    if redis.call('SISMEMBER', key, item_id) == 0 then
      mend(step, 'tasks', function()
        redis.call('SADD', key, item_id)
      end)
    end
  end
end

function check.unique(step, item_id, item)
  local key = unique_of(step, item)
  if key and not redis.call('ZSCORE', key, item_id) then
    mend(step, 'unique', function()
      take_unique(step, item_id, item)
    end)
  end
end

function check.item(step, user, item_id, item, found)
  found.seq = math.max(found.seq, seq_of(item) or 0)
  check.task(step, user, item_id, item)
  if not OPEN[item.status] then
    check.ended(step, user, item_id, item)
    return
  end
  found.open = found.open + 1
  check.unique(step, item_id, item)
  check_run(step, user, item_id, item)
  if item.status == 'waiting' then
    check.waiting(step, user, item_id, item, found)
  else -- it is claimed: its lease must show when its worker is gone
    check.index(step, 'leases', reference(user, item_id), step.now + step.request.lease_ms, true)
  end
end

-- Takes rows of a user and a cursor. The answer: for each the next cursor, empty at the end; the items whose
-- body is lost; how many items have not ended; the highest number of a message.
local function reindex_items_call(_, arguments)
  local step = open_mending(arguments)
  local found = { lost = {}, open = 0, seq = 0 }
  local cursors, left = {}, ITEMS
  for index, row in ipairs(step.request.users) do
    cursors[index] = row[2]
    if left > 0 then
      local user = user_of(step, row[1])
      local page = redis.call('HSCAN', user.key, row[2], 'COUNT', ITEMS)
      cursors[index] = page[1] == '0' and '' or page[1]
      left = left - #page[2] / 2 - 1
      for place = 1, #page[2], 2 do
        local item_id = page[2][place]
        if user.items[item_id] == nil then
          user.items[item_id] = parse_item(page[2][place + 1])
        end
        local item = read_item(step, row[1], item_id)
        if item then
          check.item(step, row[1], item_id, item, found)
        end
      end
    end
  end
  return close_mending(step, cursors, found.lost, found.open, found.seq)
end

-- -- members that point to nothing -------------------------------------------------------------------------

local function of_status(statuses)
  return function(_, found)
    return found.item and statuses[found.item.status]
  end
end

-- For each index: whether a member belongs there.
local BELONGS = {
  leases = of_status({ in_progress = true }),
  deadlines = of_status({ waiting = true }),
  failed = of_status({ failed = true }),
  cancelled = of_status({ cancelled = true }),
  expiry = of_status({ completed = true, cancelled = true }),
  due = function(_, found)
    local item = found.item
    return item
      and item.status == 'waiting'
      and item.entry == ''
      and not item.rare.waits_for
      and due_member(found.user, found.id, item) == found.member
  end,
  resting = function(_, found)
    return string.match(found.name, NAME_OF_LANE)
  end,
  ready = function(step, found)
    return string.match(found.name, NAME_OF_LANE) and see_lane(step, found.name).text
  end,
}

-- Removes members of an index that point to nothing; the answer is the next cursor.
local function reindex_strays_call(_, arguments)
  local step = open_mending(arguments)
  local index, key = step.request.index, step.prefix .. ':' .. step.request.index
  local belongs = BELONGS[string.match(index, '^[^:]*')]
  local page = redis.call('ZSCAN', key, step.request.cursor, 'COUNT', ITEMS)
  local members, rows, of_items = {}, {}, index ~= 'resting' and BELONGS[index]
  for place = 1, #page[2], 2 do
    local found = { member = page[2][place] }
    found.name = index == 'due' and string.match(found.member, '^%d+:(.*)$') or found.member
    found.user, found.id = split_reference(found.name)
    members[#members + 1] = found
    if found.user and of_items then
      rows[#rows + 1] = { found.user, found.id }
    end
  end
  fetch_rows(step, rows)
  for _, found in ipairs(members) do
    found.item = found.user and of_items and read_item(step, found.user, found.id)
    if not belongs(step, found) then
      mend(step, 'strays', function()
        redis.call('ZREM', key, found.member)
      end)
    end
  end
  return close_mending(step, page[1] == '0' and '' or page[1])
end

-- Looks at bodies that wait aside, and removes those whose message has ended or is in its lane. The answer:
-- the next cursor, and the bodies without an item.
local function reindex_aside_call(_, arguments)
  local step = open_mending(arguments)
  local key, orphans = step.prefix .. ':delayed', {}
  local page = redis.call('HSCAN', key, step.request.cursor, 'COUNT', BODIES)
  for place = 1, #page[2], 2 do
    local name, body = page[2][place], page[2][place + 1]
    local user, item_id = split_reference(name)
    local item = user and known_item(step, user, item_id)
    if not item then
      orphans[#orphans + 1] = { encode(name), encode(body) } -- they may not be valid text
    elseif not item.foreign and (not OPEN[item.status] or is_in_lane(step, item)) then
      mend(step, 'strays', function()
        if KEPT[item.status] then
          redis.call('HSETNX', step.prefix .. ':dead', name, body)
        end
        redis.call('HDEL', key, name)
      end)
    end
  end
  return close_mending(step, page[1] == '0' and '' or page[1], orphans)
end

register('reindex_items', reindex_items_call)
register('reindex_strays', reindex_strays_call)
register('reindex_aside', reindex_aside_call)
