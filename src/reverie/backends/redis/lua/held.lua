-- Held claims: the holder of a claim may renew its lease, and keep memos of its run.

-- Notes that a worker is alive and what it handles: "alive_until lives_ms label …". A worker without labels
-- is gone.
local function note_worker(step, presence)
  local worker, labels, lives_ms = presence[1], presence[2], presence[3]
  if #labels == 0 then
    types.check_key(step, step.prefix .. ':offers', 'hash')
    redis.call('HDEL', step.prefix .. ':workers', worker)
    redis.call('ZREM', step.prefix .. ':alive', worker)
    redis.call('HDEL', step.prefix .. ':offers', worker)
    return
  end
  local alive_until = step.now + lives_ms
  local text = string.format('%d %d ', alive_until, lives_ms) .. table.concat(labels, ' ')
  redis.call('HSET', step.prefix .. ':workers', worker, text)
  redis.call('ZADD', step.prefix .. ':alive', alive_until, worker)
end

-- Leaves a token for each of these labels that has work and no token: the worker that took the last one may be
-- suspended or dead.
local function offer_again(step, labels)
  local rings = {}
  for index, label in ipairs(labels) do
    rings[index] = step.prefix .. ':ready:' .. label
  end
  if #rings == 0 or is_full(step) or redis.call('EXISTS', unpack(rings)) == 0 then
    return
  end
  types.check_key(step, step.prefix .. ':paused', 'hash')
  for index, label in ipairs(labels) do
    local has_work = redis.call('EXISTS', rings[index]) == 1
    if has_work and not redis.call('HGET', step.prefix .. ':paused', label) then
      leave_tokens(step.prefix .. ':wake:' .. label, 1)
    end
  end
end

-- Extends the leases of claims that still hold their messages. The answer: the indexes of the other claims,
-- and of claims whose message is to be cancelled.
local function renew_call(_, arguments)
  local step = open_step(arguments)
  local lost, cancelled = {}, {}
  for _, held in ipairs(step.request.claims) do
    types.check_key(step, step.meta_of .. held[1], 'hash')
  end
  if #step.request.claims > 0 then
    types.check_key(step, step.prefix .. ':leases', 'zset')
    types.check_key(step, step.prefix .. ':wake_horizon', 'stream')
  end
  types.check_workers(step)
  fetch_rows(step, step.request.claims)
  for index, held in ipairs(step.request.claims) do
    local user, item_id, claim_id = unpack(held, 1, 3)
    local item = held_item(step, user, item_id, claim_id)
    if item then
      step.leased[#step.leased + 1] = step.now + step.request.lease_ms
      step.leased[#step.leased + 1] = reference(user, item_id)
    else
      lost[#lost + 1] = index - 1
    end
    if item and item.rare.cancel_requested then
      cancelled[#cancelled + 1] = index - 1
    end
  end
  if #step.leased > 0 then
    expect(step, step.now + step.request.lease_ms)
  end
  offer_again(step, step.request.presence and step.request.presence[2] or {})
  if step.request.presence then
    note_worker(step, step.request.presence)
  end
  finish(step)
  tell_horizon(step)
  return cmsgpack.pack({ step.now, lost, cancelled })
end

-- Keeps the result of one step of a run, if the claim still holds its message.
local function save_memo_call(_, arguments)
  local step = open_step(arguments)
  local request = step.request
  local user, item_id, claim_id = unpack(request.claim, 1, 3)
  types.check_key(step, step.meta_of .. user, 'hash')
  types.check_key(step, key_of(step, 'memos', user, item_id), 'hash')
  local item = held_item(step, user, item_id, claim_id)
  if item then
    redis.call('HSET', key_of(step, 'memos', user, item_id), request.step, request.value)
    item.rare.memos = 1
    write_item(step, user, item_id, item)
    finish(step)
  end
  return cmsgpack.pack({ step.now, item and true or false })
end

redis.register_function({ function_name = LIBRARY .. '_renew', callback = renew_call, flags = { 'allow-oom' } })
redis.register_function({ function_name = LIBRARY .. '_save_memo', callback = save_memo_call, flags = { 'allow-oom' } })
