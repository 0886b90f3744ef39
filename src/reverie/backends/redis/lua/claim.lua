-- Claiming: lanes of each wanted label take their turn, those that were handed back give old entries first.

local function append(entries, more)
  for _, entry in ipairs(more) do
    entries[#entries + 1] = entry
  end
end

local function read_returned(lane, worker, count, entries)
  local pending = redis.pcall('XPENDING', lane.key, GROUP, '-', '+', count, RETURNED)
  if pending.err then
    pending = {}
  end
  local ids = {}
  for index, entry in ipairs(pending) do
    ids[index] = entry[1]
  end
  in_chunks(ids, function(...)
    append(entries, redis.call('XCLAIM', lane.key, GROUP, worker, 0, ...))
  end)
  lane.returned = #ids < count and 0 or lane.returned - #ids
end

-- At most `count` entries of a lane, in their order, now owned by the worker.
local function read_entries(lane, worker, count)
  local entries = {}
  if lane.returned > 0 then
    read_returned(lane, worker, math.min(count, lane.returned), entries)
  end
  local room = count - #entries
  if room > 0 and lane.returned == 0 then
    local new =
      redis.pcall('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', room, 'STREAMS', lane.key, '>')
    if new and not new.err then
      append(entries, new[1][2])
    end
  end
  if #entries < count and lane.returned == 0 then
    lane.waiting = 0 -- it gave all it had, whatever its counts said
  else
    lane.waiting = math.max(lane.returned, lane.waiting - #entries)
  end
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
  item.status, item.claim_id = 'in_progress', request.claim_id
  if item.started_at == 'null' then
    item.started_at = string.format('%d', step.now)
  end
  write_item(step, user, item_id, item)
  lane.running = lane.running + 1
  step.leased[#step.leased + 1] = step.now + request.lease_ms
  step.leased[#step.leased + 1] = reference(user, item_id)
  rows[#rows + 1] = { body, entry_id, item.attempts, item.losses, item.submitted_at }
end

-- Gives at most `count` messages of a lane to the worker.
local function serve(step, lane, count, claims)
  local user = string.match(lane.name, '^[^:]*')
  local entries = read_entries(lane, step.request.claim.worker, count)
  local item_ids = {}
  for index, entry in ipairs(entries) do
    item_ids[index] = entry[2][4] or ''
  end
  fetch_items(step, user, item_ids)
  local rows = {}
  for _, entry in ipairs(entries) do
    start(step, lane, user, entry, rows)
  end
  if #rows > 0 then
    claims[#claims + 1] = { lane.key, rows }
  end
end

local function claim_label(step, want, claims)
  local label, lanes, messages, quantum, ordered, min_idle = unpack(want, 1, 6)
  local most = math.min(lanes, messages)
  if most < 1 then
    return
  end
  local names = redis.call('LPOP', step.prefix .. ':ready:' .. label, most) or {}
  local share = math.max(1, math.min(quantum, math.floor(messages / #names)))
  fetch_lanes(step, names)
  for _, name in ipairs(names) do
    local lane = lane_of(step, name)
    lane.queued = false
    if may_be_served(lane) then
      lane.ordered, lane.min_idle = ordered, min_idle
      serve(step, lane, share, claims)
    end
  end
end

-- Whoever is woken claims; while lanes are left, the next one is woken.
local function renew_tokens(step, label)
  if redis.call('LLEN', step.prefix .. ':ready:' .. label) > 0 then
    leave_tokens(step.prefix .. ':wake:' .. label, 1)
  else
    redis.call('DEL', step.prefix .. ':wake:' .. label)
  end
end

-- Serves each wanted label; the answer has each lane's stream and what the worker must know of its messages.
local function claim(step)
  local claims = {}
  for _, want in ipairs(step.request.claim.wants) do
    claim_label(step, want, claims)
  end
  if #claims > 0 then
    expect(step, step.now + step.request.claim.lease_ms)
  end
  finish(step)
  for _, want in ipairs(step.request.claim.wants) do
    renew_tokens(step, want[1])
  end
  return claims
end

local function claim_call(_, arguments)
  local step = open_step(arguments)
  local claims = claim(step)
  tell_horizon(step)
  return cmsgpack.pack({ step.now, claims })
end

local function submit_call(_, arguments)
  local step = open_step(arguments)
  local answers = insert_all(step, step.request.messages)
  finish(step)
  local claims = step.request.claim and claim(step) or {}
  tell_horizon(step)
  return cmsgpack.pack({ step.now, answers, claims })
end

-- Extends the leases that still stand; the answer has the places of the others in the request.
local function renew_call(_, arguments)
  local step = open_step(arguments)
  local lost = {}
  fetch_rows(step, step.request.claims)
  for index, held in ipairs(step.request.claims) do
    local user, item_id, claim_id = unpack(held, 1, 3)
    if held_item(step, user, item_id, claim_id) then
      step.leased[#step.leased + 1] = step.now + step.request.lease_ms
      step.leased[#step.leased + 1] = reference(user, item_id)
    else
      lost[#lost + 1] = index - 1
    end
  end
  if #step.leased > 0 then
    expect(step, step.now + step.request.lease_ms)
  end
  finish(step)
  tell_horizon(step)
  return cmsgpack.pack({ step.now, lost })
end

redis.register_function(LIBRARY .. '_submit', submit_call)
redis.register_function({ function_name = LIBRARY .. '_claim', callback = claim_call, flags = { 'allow-oom' } })
redis.register_function({ function_name = LIBRARY .. '_renew', callback = renew_call, flags = { 'allow-oom' } })
