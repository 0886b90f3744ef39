-- Limits: whether a submit is taken. All is looked at before anything is written.
--
-- A refusal is {what, place of the message, number, count, text}, of which each kind says what it means; Python
-- makes the error of it. The arithmetic is that of `reverie.backends.limits`.

local TOTAL = 'total' -- stands for all tenants; the name of a tenant has a ':'

local function find_unhandled(step, messages)
  if not step.limits.refuse_unhandled then
    return
  end
  local handled = {}
  for _, text in ipairs(redis.call('HVALS', step.prefix .. ':workers')) do
    local alive_until, labels = string.match(text, '^(%d+) %d+(.*)$')
    if tonumber(alive_until) > step.now then
      for label in string.gmatch(labels, '%S+') do
        handled[label] = true
      end
    end
  end
  for index, message in ipairs(messages) do
    if not handled[string.match(message[3], '[^:]*$')] then
      return { 'unhandled', index - 1, 0, 0, '' }
    end
  end
end

-- The first parent that is neither known nor among these messages.
local function unknown_parent(step, messages)
  local given
  for _, message in ipairs(messages) do
    for _, parent in ipairs(message[11] or {}) do
      if not given then
        given = {}
        for _, one in ipairs(messages) do
          given[reference(one[1], one[2])] = true
        end
      end
      if not given[reference(message[1], parent)] and not read_item(step, message[1], parent) then
        return parent
      end
    end
  end
end

-- How many new messages there are in all, and for each tenant, in their order.
local function count_new(step, messages)
  local new, tenants, by_name, seen = 0, {}, {}, {}
  for index, message in ipairs(messages) do
    local name = reference(message[1], message[2])
    if not seen[name] and not known_item(step, message[1], message[2]) then
      seen[name] = true
      new = new + 1
      local tenant = string.match(message[3], '^(.*):')
      if not by_name[tenant] then
        by_name[tenant] = { name = tenant, index = index - 1, new = 0 }
        tenants[#tenants + 1] = by_name[tenant]
      end
      by_name[tenant].new = by_name[tenant].new + 1
    end
  end
  return new, tenants
end

-- When the rate allows what comes after these messages, or a refusal because they come too soon.
local function next_arrival(step, scope, index, rate, new, arrivals)
  local interval = 1000 / rate
  local arrival = tonumber(redis.call('ZSCORE', step.prefix .. ':arrivals', scope) or 0)
  local ahead = math.max(0, arrival - step.now)
  if ahead > math.max(0, 1000 - interval) then
    return { 'rate', index, arrival, new, '' }
  end
  arrivals[#arrivals + 1] = step.now + ahead + new * interval
  arrivals[#arrivals + 1] = scope
end

local function refuse_total(step, new, arrivals)
  local limits = step.limits
  if limits.total_depth and total(step, 'depth') + new > limits.total_depth then
    return { 'depth', -1, total(step, 'depth') + new, new, '' }
  end
  return limits.total_rate and next_arrival(step, TOTAL, -1, limits.total_rate, new, arrivals)
end

local function refuse_tenant(step, tenant, arrivals)
  local limits = step.limits
  local depth = limits.tenant_depth and scope_of(step, 'tenants', tenant.name).depth + tenant.new
  if depth and depth > limits.tenant_depth then
    return { 'depth', tenant.index, depth, tenant.new, '' }
  end
  return limits.tenant_rate
    and next_arrival(step, tenant.name, tenant.index, limits.tenant_rate, tenant.new, arrivals)
end

local function over_limits(step, messages)
  local new, tenants = count_new(step, messages)
  if new == 0 then
    return
  end
  local arrivals = {}
  local refusal = refuse_total(step, new, arrivals)
  for _, tenant in ipairs(tenants) do
    refusal = refusal or refuse_tenant(step, tenant, arrivals)
  end
  if not refusal then
    in_chunks(arrivals, function(...)
      redis.call('ZADD', step.prefix .. ':arrivals', ...)
    end)
  end
  return refusal
end

-- Why nothing of these messages is taken, if it is not.
local function refuse(step, messages)
  fetch_rows(step, messages)
  local refusal = find_unhandled(step, messages)
  if refusal then
    return refusal
  end
  local parent = unknown_parent(step, messages)
  if parent then
    return { 'unknown', -1, 0, 0, parent }
  end
  return over_limits(step, messages)
end
