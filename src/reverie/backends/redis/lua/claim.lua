-- Claiming: the lanes of each wanted label take turns. A lane gives the entries that were handed back first.

local OVERDUE_LIMIT = 1000 -- how many messages past their deadline one claim fails at most
local MOST_PLAIN = CHUNK / 2 -- messages whose items are written by one command

-- Claims the first entries that were handed back. The answer: these entries, and whether there are more. If
-- the first one was lost before, it comes alone.
local function read_returned(step, lane, count)
  local worker, ids, entries = step.request.claim.worker, {}, {}
  local pending = redis.pcall('XPENDING', lane.key, GROUP, '-', '+', count, RETURNED)
  for index, entry in ipairs(pending.err and {} or pending) do -- somebody may have deleted the stream
    ids[index] = entry[1]
  end
  local function take(first, last)
    for _, entry in ipairs(redis.call('XCLAIM', lane.key, GROUP, worker, 0, unpack(ids, first, last))) do
      entries[#entries + 1] = entry
    end
  end
  if #ids > 0 then
    take(1, 1)
    local item = entries[1] and read_item(step, lane.user, entries[1][2][4] or '')
    if item and item.losses > 0 then
      return entries, true
    end
  end
  for first = 2, #ids, CHUNK do
    take(first, math.min(first + CHUNK - 1, #ids))
  end
  return entries, #ids < lane.returned
end

-- Lets a message that was lost before come alone. If it comes first, all entries after it are handed back; if
-- not, it is handed back with them.
local function cut_at_loss(step, lane, entries)
  local user, item_ids = lane.user, {}
  for index, entry in ipairs(entries) do
    item_ids[index] = entry[2][4] or ''
  end
  fetch_items(step, user, item_ids)
  local lost = false
  for index = 1, #entries do
    local item = read_item(step, user, item_ids[index])
    lost = lost or item and item.losses > 0
    if lost and index > 1 then
      hand_back(lane, entries[index][1])
      touch(step, lane)
      entries[index] = nil
    end
  end
end

-- Claims at most `count` entries of a lane that nobody has claimed before.
local function read_new(step, lane, count)
  local worker = step.request.claim.worker
  local new = redis.pcall('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', count, 'STREAMS', lane.key, '>')
  return new and not new.err and new[1][2] or {}
end

-- Claims at most `count` entries of a lane in their order: those that were handed back before new ones.
local function read_entries(step, lane, count)
  if lane.returned == 0 then
    return read_new(step, lane, count)
  end
  touch(step, lane) -- it has fewer returned entries
  local entries, more = read_returned(step, lane, math.min(count, lane.returned))
  for _, entry in ipairs(not more and #entries < count and read_new(step, lane, count - #entries) or {}) do
    entries[#entries + 1] = entry
  end
  return entries
end

local function lease(step, user, item_id)
  local leased = step.leased
  local size = #leased
  leased[size + 1], leased[size + 2] = step.lease_until, reference(user, item_id)
end

local function start(step, lane, entry, rows)
  local request, user = step.request.claim, lane.user
  local entry_id, body, item_id = entry[1], entry[2][2], entry[2][4]
  local item = item_id and read_item(step, user, item_id)
  if not item then
    remove_later(lane, entry_id) -- it has no item
    touch(step, lane)
    return
  end
  item.status, item.claim_id, item.run = 'in_progress', request.claim_id, step.run
  if item.started_at == 'null' then
    item.started_at = string.format('%d', step.now)
  end
  unwatch_deadline(step, user, item_id, item)
  write_item(step, user, item_id, item)
  lease(step, user, item_id)
  follow_claim(step, item_id, item, request.lease_ms)
  rows[#rows + 1] = message_row(item, body)
end

-- Gives messages whose items are plain to the worker; the answer is their rows. If one item is not plain,
-- nothing is written, and the answer is nothing.
local function start_plain(step, user, entries)
  local item_ids, values, moments = {}, {}, {}
  for index = 1, #entries do
    item_ids[index] = entries[index][2][4] or ''
  end
  local key = step.meta_of .. user
  local texts = redis.call('HMGET', key, unpack(item_ids))
  for index = 1, #entries do
    local text, submitted_at = plain_claimed(step, texts[index] or '', entries[index][1])
    if not text then
      return
    end
    values[2 * index - 1], values[2 * index], moments[index] = item_ids[index], text, submitted_at
  end
  redis.call('HSET', key, unpack(values))
  for index = 1, #entries do
    lease(step, user, item_ids[index])
    local entry_id, row = entries[index][1], entries[index][2] -- its fields; the second is the body
    row[1], row[2], row[3], row[4] = row[2], entry_id, moments[index], nil
    entries[index] = row
  end
  return entries
end

-- Gives messages of any kind to the worker; the answer is their rows.
local function start_all(step, lane, entries)
  local rows = {}
  cut_at_loss(step, lane, entries)
  local wrong = types.first_wrong(step, lane, entries)
  for index = #entries, wrong or math.huge, -1 do
    hand_back(lane, entries[index][1])
    touch(step, lane)
    entries[index] = nil
  end
  for _, entry in ipairs(entries) do
    start(step, lane, entry, rows)
  end
  return rows
end

-- Gives at most `count` messages of a lane to the worker; the answer is how many.
local function serve_lane(step, lane, count, served)
  local entries = read_entries(step, lane, count)
  local rows = #entries > 0 and #entries <= MOST_PLAIN and start_plain(step, lane.user, entries)
  rows = rows or start_all(step, lane, entries)
  if #rows == 0 or not lane.ordered then
    touch(step, lane) -- the lane is empty, or may be served again at once
  end
  if #rows > 0 then
    served[#served + 1] = { lane.key, rows, lane.min_idle }
  end
  return #rows
end

-- Takes the next lanes out of a ring: names and turns.
local function next_lanes(step, label, most)
  local popped = redis.call('ZPOPMIN', step.prefix .. ':ready:' .. label, most)
  local names, turns = {}, {}
  for index = 1, #popped, 2 do
    names[#names + 1] = popped[index]
    turns[#turns + 1] = popped[index + 1]
  end
  return names, turns
end

-- Notes in a lane how lanes of its label are to be served. The answer: whether the lane may be served now. It may not
-- if its label has become ordered while messages of the lane run.
local function follow(step, lane, want)
  local was_ordered = lane.ordered
  if was_ordered ~= want.ordered or lane.min_idle ~= want.min_idle then
    lane.ordered, lane.min_idle = want.ordered, want.min_idle
    touch(step, lane)
    if not want.ordered then
      redis.call('SADD', step.prefix .. ':unordered', want.label)
    end
  end
  return was_ordered or not want.ordered or pending_of(lane) == 0
end

-- Serves lanes that were taken out of the ring, until they have given `enough` messages; the answer is how
-- many they gave. Lanes that are not needed keep their turn. Lanes of a full tenant are parked when they are
-- written.
local function serve_lanes(step, want, names, turns, enough, served)
  local given, unused = 0, {}
  for index, name in ipairs(names) do
    if given < enough then
      local is_right = types.may_serve(step, name)
      local lane, room = is_right and see_lane(step, name), is_right and tenant_room(step, name)
      if not is_right then
        want.wrong[#want.wrong + 1] = turns[index]
        want.wrong[#want.wrong + 1] = name
      elseif room > 0 and rest_of(step, lane) == 0 and follow(step, lane, want) then
        given = given + serve_lane(step, lane, math.min(want.quantum, enough - given, room), served)
      else
        touch(step, lane)
      end
    else
      unused[#unused + 1] = turns[index]
      unused[#unused + 1] = name
    end
  end
  send('ZADD', step.prefix .. ':ready:' .. want.label, unused)
  count(step, want.label, 0, given)
  return given
end

-- Serves the ready lanes of one label in turn; the answer is how many messages they gave.
local function claim_label(step, want, slots, served)
  local messages = slots * want.per_slot
  if step.limits.total_running then
    messages = math.min(messages, step.limits.total_running - total(step).running)
  end
  local given, most = 0, 0
  while given < messages do
    -- A lane may give less than its quantum, so nobody knows how many lanes are needed.
    local left = messages - given
    most = math.min(left, math.max(2 * most, math.ceil(left / want.quantum)))
    local names, turns = next_lanes(step, want.label, most)
    given = given + serve_lanes(step, want, names, turns, left, served)
    if #names < most then
      break
    end
  end
  send('ZADD', step.prefix .. ':ready:' .. want.label, want.wrong)
  want.wrong = {}
  write_lanes(step) -- lanes that may be served again join the ring
  want.given = want.given + given
  return given
end

-- Since when the first lane in the ring of a label waits for its turn; nil if there is none.
local function first_since(step, label)
  local ring = step.prefix .. ':ready:' .. label
  while true do
    local name, turn = unpack(redis.call('ZRANGE', ring, 0, 0, 'WITHSCORES'))
    if not name or tenant_room(step, name) > 0 then
      return name and turn_moment(tonumber(turn))
    end
    redis.call('ZREM', ring, name)
    lane_of(step, name) -- it is parked when it is written
  end
end

-- The wants of the request, as tables.
local function read_wants(step)
  local wants, labels = {}, {}
  for index, row in ipairs(step.request.claim.wants) do
    local label, slots, per_slot, quantum, ordered, min_idle, level = unpack(row, 1, 7)
    labels[index] = label
    wants[index] = {
      label = label,
      slots = slots,
      left = slots,
      per_slot = per_slot,
      quantum = quantum,
      ordered = ordered,
      min_idle = min_idle,
      level = level,
      given = 0,
      wrong = {}, -- turns and names of lanes that have keys of a wrong type
    }
  end
  local paused = #labels > 0 and redis.call('HMGET', step.prefix .. ':paused', unpack(labels)) or {}
  for index, want in ipairs(wants) do
    want.paused = paused[index]
  end
  return wants
end

-- The wants that have a ready lane, and how long that has waited. If slots are not shared, or work has just
-- come, that does not matter, and all wants that are not paused count as ready.
local function ready_wants(step, wants, just_come)
  local ready, shared = {}, step.request.claim.slots and not just_come
  for _, want in ipairs(wants) do
    local since = not want.paused and (not shared and step.now or first_since(step, want.label))
    if since then
      want.waited = math.max(0, step.now - since)
      ready[#ready + 1] = want
    end
  end
  return ready
end

-- Leaves a token for the next worker, for each label that still has lanes to serve. The answer has the
-- indexes of wants that got nothing although there is work: the worker has no room for it and should not wait
-- for it.
local function renew_tokens(step, wants)
  local passed = {}
  local full = is_full(step)
  for index, want in ipairs(wants) do
    local tokens = step.prefix .. ':wake:' .. want.label
    if full or want.paused or redis.call('EXISTS', step.prefix .. ':ready:' .. want.label) == 0 then
      redis.call('DEL', tokens)
    else
      leave_tokens(tokens, 1)
      if want.given == 0 then
        passed[#passed + 1] = index - 1
      end
    end
  end
  return passed
end

-- Notes when the claim was made and how many messages it holds.
local function note_claim(step, served)
  local request, held = step.request.claim, 0
  for _, lane in ipairs(served) do
    held = held + #lane[2]
  end
  if held > 0 then
    redis.call('ZADD', step.prefix .. ':claimed', step.now, request.claim_id)
    redis.call('HSET', step.prefix .. ':claims', request.claim_id, held)
    expect(step, step.now + request.lease_ms)
  end
end

-- Fails messages past their deadline.
local function fail_due(step)
  if may_be_due(step) and select(2, fail_overdue(step, OVERDUE_LIMIT)) > 0 then
    finish(step)
  end
end

-- Serves the wanted labels. The answer: the stream, the message rows and the rest of each served lane, and then that
-- of `renew_tokens`.
local function claim(step, just_come)
  local request, served = step.request.claim, {}
  step.run = string.format(RUN, step.now, encode(request.worker))
  step.lease_until = string.format('%d', step.now + request.lease_ms)
  prepare_claims(step, request)
  fail_due(step)
  local wants = read_wants(step)
  local ready = ready_wants(step, wants, just_come)
  local function give(want, slots)
    return claim_label(step, want, slots, served)
  end
  if request.slots then
    serve_shares(request, ready, step.limits.max_wait_ms, give)
  else
    for _, want in ipairs(ready) do
      give(want, want.slots)
    end
  end
  note_claim(step, served)
  finish(step)
  return served, renew_tokens(step, wants)
end

-- Checks the keys that a claim needs. If no label has work, these are few.
local function check_wanted(step, request)
  local rings = {}
  for index, row in ipairs(request.wants) do
    rings[index] = step.prefix .. ':ready:' .. row[1]
  end
  types.check_key(step, step.prefix .. ':offers', 'hash')
  types.check_key(step, step.prefix .. ':paused', 'hash')
  if #rings > 0 and redis.call('EXISTS', unpack(rings)) > 0 then
    types.check_moving(step)
    for _, row in ipairs(request.wants) do
      types.check_label(step, row[1])
    end
  end
end

-- Claims for a worker. The answer also has what was claimed for its earlier standing request; without wants,
-- only that.
local function claim_call(_, arguments)
  local step = open_step(arguments)
  local request, hand = step.request.claim, nil
  check_wanted(step, request)
  fail_due(step)
  if request.stands or #request.wants == 0 then
    take_back(step, request.worker)
    hand = take_hand(step, request.worker)
  end
  local served, passed = claim(step)
  if request.stands and #served == 0 and not hand then
    offer(step, request)
  end
  tell_horizon(step)
  return cmsgpack.pack({ step.now, served, passed, step.wrong or '', hand })
end

-- Claims messages that have just become ready, for workers that wait for them.
local function hand_over(step)
  for label in pairs(step.joined) do
    local request = find_offer(step, label)
    if request then
      step.joined[label] = nil -- the claim sees to what is left
      step.request.claim = request
      local served = claim(step, true)
      if #served > 0 then
        take_back(step, request.worker)
        fill_hand(step, request, served)
      end
    end
  end
end

-- Accepts the messages of a request. The answer: those that were not accepted, the refusal if all are
-- refused, and how many messages there are.
local function accept(step)
  local request = step.request
  local plain, messages = request.plain, request.messages
  if request.label then
    see_scopes(step, request.label)
  end
  if plain and may_come_plain(step, plain) then
    return insert_all_plain(step, plain), nil, #plain / PLAIN
  end
  messages = plain and plain_rows(plain) or messages
  for _, message in ipairs(messages) do
    types.check_message(step, message)
  end
  local refusal = refuse(step, messages)
  return not refusal and insert_all(step, messages) or {}, refusal, #messages
end

local function submit_call(_, arguments)
  local step = types.open_writing(arguments)
  local others, refusal, amount = accept(step)
  if refusal then
    return cmsgpack.pack({ step.now, {}, refusal })
  elseif step.problem and not next(step.new) then
    error(step.problem) -- nothing was written
  end
  arrange(step)
  if amount <= FEW and not step.problem then
    hand_over(step)
  end
  finish(step)
  tell_horizon(step)
  if step.problem then
    error(step.problem)
  end
  return cmsgpack.pack({ step.now, others })
end

redis.register_function(LIBRARY .. '_submit', submit_call)
redis.register_function({ function_name = LIBRARY .. '_claim', callback = claim_call, flags = { 'allow-oom' } })
