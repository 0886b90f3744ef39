-- Recount: checks that lanes are known and that those that may be served have a turn; corrects the counts of
-- labels.

local PAGE = 500 -- items that are looked at in one call
local COLUMN = { completed = 3, failed = 4, cancelled = 5 } -- where a sum has the ended messages
local ENDED_AT = {
  completed = '"completed_at":(%d+)',
  failed = '"failed_at":(%d+)',
  cancelled = '"cancelled_at":(%d+)',
}
local check = {} -- all checks in one table, because a Lua text may have few local names

function check.sum_of(sums, lane)
  local label = string.match(lane, '[^:]*$')
  sums[label] = sums[label] or { label, 0, 0, 0, 0 }
  return sums[label]
end

-- Counts an item for its label as it was at the moment `at`, when `seq` was the last number of a message. A
-- message that came later is not counted, and one that ended later is counted as not ended.
function check.tally_label(step, sum, text, status)
  local ended = ENDED_AT[status] and tonumber(string.match(text, ENDED_AT[status]))
  if ended and ended <= step.request.at then
    sum[COLUMN[status]] = sum[COLUMN[status]] + 1
  elseif tonumber(string.match(text, '"seq":(%d+)')) <= step.request.seq then
    sum[2] = sum[2] + 1
  end
end

-- Counts the next items of a user: how many wait aside, by lane, and the sums of their labels (see above).
-- The answer is the next cursor, empty at the end, and how many items these were.
function check.tally_page(step, user, cursor, asides, sums)
  local page = redis.call('HSCAN', user_of(step, user).key, cursor, 'COUNT', PAGE)
  for place = 1, #page[2], 2 do
    local item_id, text = page[2][place], page[2][place + 1]
    local status = string.match(text, '^{"status":"([a-z_]+)"')
    local name = status and string.match(text, '"lane":"([^":]*:[^":]*:[^":]*)"')
    if name then
      check.tally_label(step, check.sum_of(sums, name), text, status)
    end
    if name and OPEN[status] then
      local in_lane = is_in_lane(step, parse_item(text))
      local aside = status == 'waiting' and not in_lane and has_body_aside(step, user, item_id)
      asides[name] = (asides[name] or 0) + (aside and 1 or 0)
    end
  end
  return page[1] == '0' and '' or page[1], #page[2] / 2
end

-- Since when a lane that has lost its turn has waited for it: since its first message came.
function check.since_of(step, lane)
  local first = redis.call('XRANGE', lane.key, '-', '+', 'COUNT', 1)[1]
  return math.min(step.now, tonumber(first and string.match(first[1], '^%d+')) or step.now)
end

-- Checks that a lane that may be served is in its ring or parked, and that another lane is not in its ring. A
-- lane that comes back gets a turn that fits the time for which it has waited.
function check.ring(step, lane, left, running)
  local ring, tenant = step.prefix .. ':ready:' .. lane.label, tenant_of(lane.name)
  local queued = redis.call('ZSCORE', ring, lane.name) and true or false
  local parked = string.find(parked_of(step, tenant) .. ' ', ' ' .. lane.label .. ' ', 1, true) ~= nil
  local served = left > running and rest_of(step, lane) == 0 and (running == 0 or not lane.ordered)
  local room = served and tenant_room(step, lane.name) > 0
  local right = queued and not parked
  if served and not room then
    right = queued or parked -- a lane in the ring is parked when its turn comes
  elseif not served then
    right = not queued
  end
  if right then
    return
  end
  mend(step, 'rings', function()
    if room and not queued then
      redis.call('ZADD', ring, check.since_of(step, lane) * TURNS_PER_MS, lane.name)
    end
    touch(step, lane) -- when written, it joins or leaves its ring or is parked, and parked ones may come back
  end)
end

function check.lane(step, name, aside)
  local lane = see_lane(step, name)
  local streamed = redis.call('TYPE', lane.key).ok == 'stream'
  local left = streamed and redis.call('XLEN', lane.key) or 0
  local running, returned = pending_of(lane)
  if left == 0 then
    running, returned = 0, 0
  end
  if streamed and left == 0 then
    mend(step, 'strays', function()
      touch(step, lane) -- an empty stream is deleted when its lane is written
    end)
  end
  if step.request.misplaced then
    return -- a dry run has left entries where they do not belong
  end
  local known, works = lane.text and true or false, left + aside > 0
  if known ~= works or works and (lane.aside ~= aside or lane.returned ~= returned) then
    mend(step, 'lanes', function()
      lane.aside = aside
      touch(step, lane)
    end)
  end
  local unordered = step.prefix .. ':unordered'
  if works and not lane.ordered and redis.call('SISMEMBER', unordered, lane.label) == 0 then
    mend(step, 'lanes', function()
      redis.call('SADD', unordered, lane.label)
    end)
  end
  check.ring(step, lane, left, running)
end

-- A hash that changes when a message of the user comes, goes, or goes aside.
function check.witness_of(step, user)
  local texts = { redis.call('HLEN', user_of(step, user).key) }
  for _, text in ipairs(redis.call('HGETALL', step.lanes_of .. user)) do
    texts[#texts + 1] = text
  end
  return redis.sha1hex(table.concat(texts, '\n'))
end

function check.user(step, user, asides, sums)
  for _, field in ipairs(redis.call('HKEYS', step.lanes_of .. user)) do
    local name = user .. ':' .. field
    if string.match(name, NAME_OF_LANE) then
      asides[name] = asides[name] or 0
    end
  end
  for _, row in ipairs(step.request.extra or {}) do -- what a dry run would have adopted
    if string.match(row[1], '^[^:]*') == user then
      asides[row[1]] = (asides[row[1]] or 0) + row[3]
      local sum = check.sum_of(sums, row[1])
      sum[2] = sum[2] + row[2] + row[3]
    end
  end
  for name, aside in pairs(asides) do
    check.lane(step, name, aside)
  end
end

-- Counts the next items of a user, and checks the user's lanes after the last ones. If something has moved
-- meanwhile, the answer asks to count again instead. A user with few items is done at once.
function check.row(step, row)
  local user, cursor, witness = unpack(row, 1, 3)
  local asides, sums, again = {}, {}, false
  for _, counted in ipairs(row[4]) do
    asides[counted[1]] = counted[2]
  end
  local next_cursor, seen = check.tally_page(step, user, cursor, asides, sums)
  if cursor == '0' and next_cursor ~= '' then
    witness = check.witness_of(step, user)
  end
  if next_cursor == '' then
    again = cursor ~= '0' and check.witness_of(step, user) ~= witness
    if not again then
      check.user(step, user, asides, sums)
    end
  end
  local carried, totals = {}, {}
  for name, aside in pairs(next_cursor ~= '' and asides or {}) do
    carried[#carried + 1] = { name, aside }
  end
  for _, sum in pairs(sums) do
    totals[#totals + 1] = sum
  end
  return { next_cursor, witness, carried, totals, again }, seen
end

-- Counts the items of users. Takes rows of a user, a cursor, and the witness and counts from the answer to
-- the call before; with `rest`, only users without items are looked at. The answer has for each row: the next
-- cursor, witness and counts; for each label how many messages had not ended, had completed, failed or been
-- cancelled at the moment `at`; whether to count again.
local function recount_users_call(_, arguments)
  local step = open_mending(arguments)
  local answers, left = {}, PAGE
  for index, row in ipairs(step.request.users) do
    if step.request.rest and redis.call('EXISTS', user_of(step, row[1]).key) == 1 then
      answers[index] = { '', '', {}, {}, false }
    elseif left > 0 then
      local seen
      answers[index], seen = check.row(step, row)
      left = left - seen - 1
    else
      answers[index] = { row[2], row[3], row[4], {}, false }
    end
  end
  return close_mending(step, answers)
end

-- -- labels and claims --------------------------------------------------------------------------------------

-- Checks that the numbers of messages to come will be higher than all that were given.
local function recount_numbers_call(_, arguments)
  local step = open_mending(arguments)
  local all = total(step)
  if all.seq < step.request.seq then
    mend(step, 'numbers', function()
      all.seq = step.request.seq
      mark(step, all)
    end)
  end
  return close_mending(step)
end

-- The present counts: the last number that was given to a message; then rows of a label (or all together),
-- how many messages have not ended, completed, failed, were cancelled, and how many ever completed and ever
-- failed.
local function recount_labels_call(_, arguments)
  local step = open_mending(arguments)
  local all, rows = total(step), {}
  rows[1] = { ALL, all.depth, 0, 0, 0, 0, 0 }
  for _, label in ipairs(redis.call('HKEYS', step.prefix .. ':labels')) do
    if label ~= ALL then
      local scope = scope_of(step, label)
      local ended = scope.ended
      rows[#rows + 1] = {
        label,
        scope.depth,
        ended.completed,
        ended.failed,
        ended.cancelled,
        ended.completed_ever,
        ended.failed_ever,
      }
    end
  end
  return close_mending(step, all.seq, rows)
end

-- How many messages of each label and of all run, which are those that have a lease. The second answer has
-- the claims that hold them: how many each, and since when.
function check.tally_leases(step)
  local running, claims, rows = { [ALL] = 0 }, {}, {}
  for index, name in ipairs(redis.call('ZRANGE', step.prefix .. ':leases', 0, -1)) do
    rows[index] = { split_reference(name) }
  end
  fetch_rows(step, rows)
  for _, row in ipairs(rows) do
    local item = read_item(step, row[1], row[2])
    if item and item.status == 'in_progress' then
      local label, made = label_of(item), tonumber(string.match(item.run, '"claimed_at":(%d+)') or step.now)
      running[label], running[ALL] = (running[label] or 0) + 1, running[ALL] + 1
      local claim = claims[item.claim_id] or { held = 0, made = made }
      claims[item.claim_id] = claim
      claim.held = claim.held + 1
    end
  end
  return running, claims
end

-- Checks that these claims are known, with how many messages each holds and since when; and no others.
function check.claims(step, claims)
  local held, made = step.prefix .. ':claims', step.prefix .. ':claimed'
  for id, claim in pairs(claims) do
    local known = tonumber(redis.call('HGET', held, id) or nil) == claim.held
    if not known or not redis.call('ZSCORE', made, id) then
      mend(step, 'claimed', function()
        redis.call('HSET', held, id, claim.held)
        redis.call('ZADD', made, claim.made, id)
      end)
    end
  end
  local ids, seen = redis.call('HKEYS', held), {}
  for _, id in ipairs(redis.call('ZRANGE', made, 0, -1)) do
    ids[#ids + 1] = id
  end
  for _, id in ipairs(ids) do
    if not claims[id] and not seen[id] then
      seen[id] = true
      mend(step, 'claimed', function()
        redis.call('HDEL', held, id)
        redis.call('ZREM', made, id)
      end)
    end
  end
end

-- Corrects the counts of ended messages by the differences that were found. Messages may have been forgotten
-- during the count, so a difference that is no larger than their number is ignored.
function check.correct_ended(ended, row)
  local changed = false
  for index, name in ipairs({ 'completed', 'failed', 'cancelled' }) do
    local missing, before, ever = row[index + 2], row[index + 5], row[index + 8]
    local now = ended[name .. '_ever']
    local forgotten = now and now - ever - (ended[name] - before) or ended[name] - before
    if math.abs(missing) > math.abs(forgotten) then
      ended[name], changed = math.max(0, ended[name] + missing), true
    end
    if now then
      ended[name .. '_ever'] = math.max(now, ended[name])
    end
  end
  return changed
end

-- Puts the counts of labels and claims right. Takes rows of a label; what must be added to its messages that
-- have not ended, completed, failed, were cancelled; the counts of the last three before, and how many ever
-- completed and ever failed then. `unsure`: a dry run has not written the leases that are missing, so it is
-- not known what runs.
local function recount_correct_call(_, arguments)
  local step = open_mending(arguments)
  local running, claims = check.tally_leases(step)
  for _, row in ipairs(step.request.labels) do
    local scope = scope_of(step, row[1])
    local runs = step.request.unsure and scope.running or running[row[1]] or 0
    local changed = row[2] ~= 0 or scope.running ~= runs
    scope.depth, scope.running = math.max(0, scope.depth + row[2]), runs
    if scope.ended then
      changed = check.correct_ended(scope.ended, row) or changed
    end
    if changed then
      mend(step, 'labels', function()
        mark(step, scope)
      end)
    end
  end
  if not step.request.unsure then
    check.claims(step, claims)
  end
  return close_mending(step)
end

register('recount_users', recount_users_call)
register('recount_numbers', recount_numbers_call)
register('recount_labels', recount_labels_call)
register('recount_correct', recount_correct_call)
