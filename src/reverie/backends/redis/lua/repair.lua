-- Repair: checks that every entry of a stream has its item, and the right consumer.

local ENTRIES = 100 -- entries that are read at a time; each has a body
local MOST_ENTRIES = 1000 -- entries after which a call has done enough
local MOST_BYTES = 8 * 1024 * 1024 -- bytes of bodies after which a call has done enough
local check = {} -- all checks in one table, because a Lua text may have few local names

function check.is_after(one, other)
  local time, number = string.match(one, '^(%d+)-(%d+)$')
  local other_time, other_number = string.match(other, '^(%d+)-(%d+)$')
  time, other_time = tonumber(time), tonumber(other_time)
  return time > other_time or time == other_time and tonumber(number) > tonumber(other_number)
end

-- The last entry that was given to a consumer. If the group is missing, no entry counts as new: a running
-- message must not be given to another worker, and it is not known yet which messages run.
function check.last_given(step, work)
  local given = last_delivered(work.key)
  if given then
    return given
  end
  local newest = redis.call('XREVRANGE', work.key, '+', '-', 'COUNT', 1)[1]
  local last = newest and newest[1] or '0-0'
  mend(step, 'groups', function()
    redis.call('XGROUP', 'CREATE', work.key, GROUP, last)
  end)
  return last
end

-- The consumers of the pending entries of a range, by entry.
function check.owners_between(key, first, last)
  local owners = {}
  repeat
    local page = redis.pcall('XPENDING', key, GROUP, first, last, CHUNK)
    page = page.err and {} or page
    for _, pending in ipairs(page) do
      owners[pending[1]] = pending[2]
      first = '(' .. pending[1]
    end
  until #page < CHUNK
  return owners
end

-- Removes the entry of a message that has ended or has its place elsewhere: the message would run once more.
function check.remove_entry(step, work, entry, item_id, item)
  mend(step, 'removed', function()
    if KEPT[item.status] then
      redis.call('HSETNX', step.prefix .. ':dead', reference(work.user, item_id), entry[2][2])
    end
    redis.call('XACK', work.key, GROUP, entry[1])
    redis.call('XDEL', work.key, entry[1])
  end)
end

-- The item of an entry, if the entry is where it should be. Entries that are unreadable or have no item are
-- added to `work`.
function check.item_of_entry(step, work, entry)
  local id, fields = entry[1], entry[2]
  local body, item_id = fields[2], fields[4]
  local ours = fields[1] == 'message' and fields[3] == 'item_id'
  local item = ours and known_item(step, work.user, item_id)
  if not ours or item and item.foreign then
    table.insert(work.unreadable, id)
  elseif not item then
    table.insert(work.orphans, { id, encode(item_id), encode(body) }) -- they may not be valid text
  elseif item.entry == id and OPEN[item.status] then
    return item
  elseif
    not OPEN[item.status]
    or lane_name(item) ~= work.name
    or is_in_lane(step, item)
    or has_body_aside(step, work.user, item_id)
  then
    check.remove_entry(step, work, entry, item_id, item)
  else
    mend(step, 'relinked', function()
      item.entry = id
      write_item(step, work.user, item_id, item)
    end)
    return item
  end
end

local function give(work, consumer, id)
  redis.call('XCLAIM', work.key, GROUP, consumer, 0, id, 'FORCE', 'JUSTID')
end

-- Checks that the entry of a running message belongs to its worker.
function check.running(step, work, id, item, owner)
  if check.is_after(id, work.last) then
    mend(step, 'groups', function()
      redis.call('XGROUP', 'SETID', work.key, GROUP, id)
      work.last, work.again = id, true -- entries before it are not new any more
    end)
  end
  if not owner or owner == RETURNED then
    mend(step, 'claims', function()
      local worker = string.match(item.run, '"worker":"([^"]+)"') or 'unknown'
      worker = string.gsub(worker, '%%(%x%x)', function(code)
        return string.char(tonumber(code, 16))
      end)
      give(work, worker, id)
    end)
  end
end

-- Checks that the entry of a waiting message is new, or was handed back.
function check.waiting(step, work, id, owner)
  local new = check.is_after(id, work.last)
  if new and owner then
    mend(step, 'returned', function()
      redis.call('XACK', work.key, GROUP, id)
    end)
  elseif not new and owner ~= RETURNED then
    mend(step, 'returned', function()
      give(work, RETURNED, id)
      work.given = true
    end)
  end
end

function check.entry(step, work, entry, owner)
  local item = not work.skipped[entry[1]] and check.item_of_entry(step, work, entry)
  if item and item.status == 'in_progress' then
    check.running(step, work, entry[1], item, owner)
  elseif item then
    check.waiting(step, work, entry[1], owner)
  end
end

-- Looks at the next entries of a lane.
function check.walk(step, work, budget)
  if redis.call('TYPE', work.key).ok ~= 'stream' then
    work.start = ''
    return
  end
  work.last = check.last_given(step, work)
  local entries = redis.call('XRANGE', work.key, work.start, '+', 'COUNT', ENTRIES)
  local last = #entries == ENTRIES and entries[#entries][1] or '+'
  local owners = check.owners_between(work.key, work.start, last)
  for _, entry in ipairs(entries) do
    budget.bytes = budget.bytes - #(entry[2][2] or '')
    check.entry(step, work, entry, owners[entry[1]])
    owners[entry[1]] = nil
  end
  for id in pairs(owners) do
    mend(step, 'ghosts', function()
      redis.call('XACK', work.key, GROUP, id)
    end)
  end
  if work.given then
    lane_of(step, work.name) -- a claim must read the returned entries first
  end
  budget.entries = budget.entries - #entries - 1
  work.start = work.again and '-' or last == '+' and '' or '(' .. last
end

-- Takes rows of lane, start, and ids of entries that are known not to be ours. The answer has for each lane:
-- where to go on, empty at its end; entries without an item, with their bodies; ids of entries that are not
-- ours.
local function repair_entries_call(_, arguments)
  local step = open_mending(arguments)
  local answers, budget = {}, { entries = MOST_ENTRIES, bytes = MOST_BYTES }
  for index, row in ipairs(step.request.lanes) do
    local work = {
      name = row[1],
      start = row[2],
      user = string.match(row[1], '^[^:]*'),
      key = step.prefix .. ':' .. row[1],
      skipped = {},
      orphans = {},
      unreadable = {},
    }
    for _, id in ipairs(row[3]) do
      work.skipped[id] = true
    end
    if budget.entries > 0 and budget.bytes > 0 then
      check.walk(step, work, budget)
    end
    answers[index] = { work.start, work.orphans, work.unreadable }
  end
  return close_mending(step, answers)
end

-- Writes a new item for a message that has only its body left.
local function adopt(step, entry, due, message)
  local user, item_id, task = message[1], message[2], message[6]
  local item = new_item(step, message, take_numbers(step, 1) + 1)
  item.body, item.entry = nil, entry
  if not is_in_lane(step, item) and not (entry == '' and has_body_aside(step, user, item_id)) then
    return
  end
  mend(step, 'adopted', function()
    item.submitted_at = math.min(step.now, tonumber(string.match(entry, '^%d+')) or step.now)
    item.rare.due = entry == '' and math.max(due, step.now) or nil
    item.rare.waits_for = entry == '' and message[10] and #message[10] or nil
    write_item(step, user, item_id, item)
    lane_of(step, message[3])
    if task then
      redis.call('SADD', step.status .. ':task_items:' .. user .. ':' .. task, item_id)
    end
  end)
end

-- Takes rows of an entry's id (empty: the body is aside), its due time (0: now) and its message.
local function repair_adopt_call(_, arguments)
  local step = open_mending(arguments)
  for _, row in ipairs(step.request.rows) do
    if not known_item(step, row[3][1], row[3][2]) then
      adopt(step, row[1], row[2], row[3])
    end
  end
  return close_mending(step)
end

register('repair_entries', repair_entries_call)
register('repair_adopt', repair_adopt_call)
