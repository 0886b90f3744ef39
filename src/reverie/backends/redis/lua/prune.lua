-- Pruning: statuses that were dated by a longer retention expire earlier. A drained lane leaves no key, so there is
-- nothing else to remove.

-- Dates the ended messages after a moment by the retention that holds now, about `limit` of them. The answer: how many
-- have changed, and the moment that was reached, if there are more.
local function date_earlier(step, after, limit)
  local key, changed = step.prefix .. ':expiry', 0
  local names = redis.call('ZRANGE', key, '(' .. after, '+inf', 'BYSCORE', 'LIMIT', 0, limit)
  local reached = #names == limit and redis.call('ZSCORE', key, names[limit])
  if reached then
    names = redis.call('ZRANGE', key, '(' .. after, reached, 'BYSCORE') -- with all that have the last moment
  end
  for _, found in ipairs(read_all(step, names)) do
    local ended = string.match(found.item.note, '"' .. found.item.status .. '_at":(%d+)')
    if ended and found.item.status ~= 'failed' then
      local expiry = tonumber(ended) + step.limits.retention_ms
      changed = changed + redis.call('ZADD', key, 'XX', 'CH', 'LT', expiry, reference(found.user, found.id))
      expect(step, expiry)
    end
  end
  return changed, reached
end

local function prune_call(_, arguments)
  local step = types.open_writing(arguments)
  local key, kept = step.prefix .. ':retention', string.format('%d', step.limits.retention_ms)
  local dated_by, changed, reached = redis.call('GET', key), 0, nil
  if not dated_by or tonumber(dated_by) > tonumber(kept) then
    changed, reached = date_earlier(step, step.request.after or '-inf', step.request.limit)
  end
  if not reached and dated_by ~= kept then
    redis.call('SET', key, kept)
  end
  tell_horizon(step)
  return cmsgpack.pack({ step.now, changed, reached or nil })
end

redis.register_function({ function_name = LIBRARY .. '_prune', callback = prune_call, flags = { 'allow-oom' } })
