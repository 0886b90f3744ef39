-- Limits: whether a submit is accepted. All its messages are checked before anything is written.
--
-- A refusal is {kind, index of the message, number, count, text}; its kind decides what the rest means.
-- Python raises an error from it. The arithmetic is that of `reverie.backends.limits`.

local unknown_parent, refuse
do
  local NONE = {}
  local TOTAL = 'total' -- the name of all tenants together; the name of one has a ':'

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
  function unknown_parent(step, messages)
    local given
    for _, message in ipairs(messages) do
      if message[10] and not given then
        given = {}
        for _, one in ipairs(messages) do
          given[reference(one[1], one[2])] = true
        end
      end
      for _, parent in ipairs(message[10] or NONE) do
        if not given[reference(message[1], parent)] and not read_item(step, message[1], parent) then
          return parent
        end
      end
    end
  end

  -- The indexes of the new messages; a message that comes twice counts once.
  local function find_new(step, messages)
    local new, seen = {}, {}
    for index, message in ipairs(messages) do
      local name = reference(message[1], message[2])
      if not seen[name] and not known_item(step, message[1], message[2]) then
        seen[name] = true
        new[#new + 1] = index
      end
    end
    return new
  end

  -- The refusal of new messages whose labels are too many.
  local function over_labels(step, messages)
    if has_room_for(step, #new_labels(step)) then
      return
    end
    local seen, new = {}, {}
    for _, index in ipairs(find_new(step, messages)) do
      local label = string.match(messages[index][3], '[^:]*$')
      if not seen[label] and not scope_of(step, label).known then
        seen[label] = true
        new[#new + 1] = label
      end
    end
    if not has_room_for(step, #new) then
      table.sort(new)
      return { 'labels', -1, 0, 0, new[1] }
    end
  end

  -- The tenants of the new messages, in their order, and how many messages each has.
  local function by_tenant(messages, new)
    local tenants, by_name = {}, {}
    for _, index in ipairs(new) do
      local name = string.match(messages[index][3], '^(.*):')
      if not by_name[name] then
        by_name[name] = { name = name, index = index - 1, new = 0 }
        tenants[#tenants + 1] = by_name[name]
      end
      by_name[name].new = by_name[name].new + 1
    end
    return tenants
  end

  -- Adds to `arrivals` when the rate allows the next message after these. The answer is a refusal, if they
  -- come too soon.
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
    local depth = limits.total_depth and total(step).depth + new
    if depth and depth > limits.total_depth then
      return { 'depth', -1, depth, new, '' }
    end
    return limits.total_rate and next_arrival(step, TOTAL, -1, limits.total_rate, new, arrivals)
  end

  local function refuse_tenant(step, tenant, arrivals)
    local limits = step.limits
    local depth = limits.tenant_depth and tenant_counts(step, tenant.name) + tenant.new
    if depth and depth > limits.tenant_depth then
      return { 'depth', tenant.index, depth, tenant.new, '' }
    end
    return limits.tenant_rate
      and next_arrival(step, tenant.name, tenant.index, limits.tenant_rate, tenant.new, arrivals)
  end

  local function over_limits(step, messages)
    local new, arrivals, limits = find_new(step, messages), {}, step.limits
    if #new == 0 then
      return
    end
    local refusal = refuse_total(step, #new, arrivals)
    if limits.tenant_depth or limits.tenant_rate then
      for _, tenant in ipairs(by_tenant(messages, new)) do
        refusal = refusal or refuse_tenant(step, tenant, arrivals)
      end
    end
    if not refusal then
      send('ZADD', step.prefix .. ':arrivals', arrivals)
    end
    return refusal
  end

  -- The refusal of these messages; nothing if they may be accepted.
  function refuse(step, messages)
    fetch_rows(step, messages)
    local refusal = find_unhandled(step, messages)
    if refusal then
      return refusal
    end
    local parent = unknown_parent(step, messages)
    if parent then
      return { 'unknown', -1, 0, 0, parent }
    end
    return over_labels(step, messages) or over_limits(step, messages)
  end
end
