-- Claiming: lanes of each wanted label take their turn, those that were handed back give old entries first.

local OVERDUE_LIMIT = 1000 -- how many messages past their deadline one claim fails at most

-- The first entries that were handed back, now owned by the worker. If the first one was lost before, only that.
local function read_returned(step, lane, user, count)
  local pending = redis.pcall('XPENDING', lane.key, GROUP, '-', '+', count, RETURNED)
  local ids, entries = {}, {}
  for index, entry in ipairs(pending.err and {} or pending) do
    ids[index] = entry[1]
  end
  local function take(first, last)
    local worker = step.request.claim.worker
    for _, entry in ipairs(redis.call('XCLAIM', lane.key, GROUP, worker, 0, unpack(ids, first, last))) do
      entries[#entries + 1] = entry
    end
  end
  lane.returned = #ids < count and 0 or lane.returned - #ids
  if #ids > 0 then
    take(1, 1)
    local item = entries[1] and read_item(step, user, entries[1][2][4] or '')
    if item and item.losses > 0 then
      lane.returned = lane.returned + #ids - 1
      return entries, true
    end
  end
  for first = 2, #ids, CHUNK do
    take(first, math.min(first + CHUNK - 1, #ids))
  end
  return entries, false
end

-- Lets what was lost before come alone: it and what comes after it is handed back, and if it comes first, only
-- what comes after it. The answer is how many.
local function cut_at_loss(step, lane, user, entries)
  local item_ids = {}
  for index, entry in ipairs(entries) do
    item_ids[index] = entry[2][4] or ''
  end
  fetch_items(step, user, item_ids)
  local cut, lost = 0, false
  for index = 1, #entries do
    local item = read_item(step, user, item_ids[index])
    lost = lost or item and item.losses > 0
    if lost and index > 1 then
      lane.back[#lane.back + 1] = entries[index][1]
      entries[index] = nil
      cut = cut + 1
    end
  end
  return cut
end

-- At most `count` entries of a lane, in their order, now owned by the worker. What was lost comes alone.
local function read_entries(step, lane, user, count)
  local entries, alone = {}, false
  if lane.returned > 0 then
    entries, alone = read_returned(step, lane, user, math.min(count, lane.returned))
  end
  local room = count - #entries
  if room > 0 and lane.returned == 0 and not alone then
    local worker = step.request.claim.worker
    local new =
      redis.pcall('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', room, 'STREAMS', lane.key, '>')
    for _, entry in ipairs(new and not new.err and new[1][2] or {}) do
      entries[#entries + 1] = entry
    end
  end
  local exhausted = #entries < count and lane.returned == 0 and not alone
  lane.returned = lane.returned + cut_at_loss(step, lane, user, entries)
  -- A lane that gave all it had has nothing more, whatever its counts said.
  lane.waiting = exhausted and lane.returned or math.max(lane.returned, lane.waiting - #entries)
  return entries
end

local function start(step, lane, user, entry, rows)
  local request = step.request.claim
  local entry_id, body, item_id = entry[1], entry[2][2], entry[2][4]
  local item = item_id and read_item(step, user, item_id)
  if not item then
    lane.ended[#lane.ended + 1] = entry_id -- nobody knows of it
    return
  end
  item.status, item.claim_id, item.run = 'in_progress', request.claim_id, step.run
  if item.started_at == 'null' then
    item.started_at = string.format('%d', step.now)
  end
  unwatch_deadline(step, user, item_id, item)
  write_item(step, user, item_id, item)
  begin_run(step, lane)
  local name = reference(user, item_id)
  step.leased[#step.leased + 1] = step.now + request.lease_ms
  step.leased[#step.leased + 1] = name
  step.started[#step.started + 1] = step.now
  step.started[#step.started + 1] = name
  rows[#rows + 1] = message_row(item, body)
end

-- Gives at most `count` messages of a lane to the worker; the answer is how many.
local function serve_lane(step, lane, count, served)
  local user = string.match(lane.name, '^[^:]*')
  local rows = {}
  for _, entry in ipairs(read_entries(step, lane, user, count)) do
    start(step, lane, user, entry, rows)
  end
  if #rows > 0 then
    served[#served + 1] = { lane.key, rows }
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
  if #names > 0 then
    fetch_lanes(step, names)
    fetch_scopes(step, names)
  end
  return names, turns
end

-- Serves lanes that were taken out of the ring until they have given enough; the answer is how many messages
-- they gave. Lanes that are not needed keep their turn, those of a tenant that is full are parked when written.
local function serve_lanes(step, want, names, turns, enough, served)
  local given, unused = 0, {}
  for index, name in ipairs(names) do
    if given < enough then
      local lane = lane_of(step, name)
      local room = tenant_room(step, lane.tenant)
      lane.since = 0
      if may_be_served(lane) and room > 0 then
        lane.ordered, lane.min_idle = want.ordered, want.min_idle
        given = given + serve_lane(step, lane, math.min(want.quantum, enough - given, room), served)
      end
    else
      unused[#unused + 1] = turns[index]
      unused[#unused + 1] = name
    end
  end
  send('ZADD', step.prefix .. ':ready:' .. want.label, unused)
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
    -- Lanes that give less than they may make more of them necessary: nobody knows how many.
    local left = messages - given
    most = math.min(left, math.max(2 * most, math.ceil(left / want.quantum)))
    local names, turns = next_lanes(step, want.label, most)
    given = given + serve_lanes(step, want, names, turns, left, served)
    if #names < most then
      break
    end
  end
  write_lanes(step) -- those that may be served again join the ring
  want.given = want.given + given
  return given
end

-- Since when the first lane in the ring of a label waits for its turn; nil if there is none.
local function first_since(step, label)
  while true do
    local name = redis.call('ZRANGE', step.prefix .. ':ready:' .. label, 0, 0)[1]
    local lane = name and see_lane(step, name)
    if not lane or tenant_room(step, lane.tenant) > 0 then
      return lane and lane.since
    end
    redis.call('ZREM', step.prefix .. ':ready:' .. label, name)
    lane_of(step, name).since = 0 -- it is parked when it is written
  end
end

-- What is wanted, as tables.
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
    }
  end
  local paused = #labels > 0 and redis.call('HMGET', step.prefix .. ':paused', unpack(labels)) or {}
  for index, want in ipairs(wants) do
    want.paused = paused[index]
  end
  return wants
end

-- Those of them that have a lane ready. Where no slots are shared it does not matter how long that has waited.
local function ready_wants(step, wants)
  local ready, shared = {}, step.request.claim.slots
  for _, want in ipairs(wants) do
    local since = not want.paused and (not shared and step.now or first_since(step, want.label))
    if since then
      want.waited = step.now - since
      ready[#ready + 1] = want
    end
  end
  return ready
end

-- Whoever is woken claims; while lanes are left that may be served, the next one is woken. The answer has the
-- places of those wants that got nothing because of what the worker has room for: it should not wait for them.
local function renew_tokens(step, wants)
  local passed = {}
  local full = step.limits.total_running and total(step).running >= step.limits.total_running
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

-- Serves the wanted labels; the answer has each lane's stream and what the worker must know of its messages.
local function claim(step)
  local request, served = step.request.claim, {}
  step.run = string.format(RUN, step.now, encode(request.worker))
  local _, overdue = fail_overdue(step, OVERDUE_LIMIT)
  if overdue > 0 then
    finish(step)
  end
  local wants = read_wants(step)
  local ready = ready_wants(step, wants)
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
  if #served > 0 then
    expect(step, step.now + request.lease_ms)
  end
  finish(step)
  return served, renew_tokens(step, wants)
end

local function claim_call(_, arguments)
  local step = open_step(arguments)
  local served, passed = claim(step)
  tell_horizon(step)
  return cmsgpack.pack({ step.now, served, passed })
end

local function submit_call(_, arguments)
  local step = open_step(arguments)
  local refusal = refuse(step, step.request.messages)
  if refusal then
    return cmsgpack.pack({ step.now, {}, {}, {}, {}, refusal })
  end
  local answers, others = insert_all(step, step.request.messages)
  finish(step)
  local served, passed = {}, {}
  if step.request.claim then
    served, passed = claim(step)
  end
  tell_horizon(step)
  return cmsgpack.pack({ step.now, answers, others, served, passed })
end

redis.register_function(LIBRARY .. '_submit', submit_call)
redis.register_function({ function_name = LIBRARY .. '_claim', callback = claim_call, flags = { 'allow-oom' } })
