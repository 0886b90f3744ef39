-- Counts: how many messages of each label, of each tenant and of all have not ended, and how many of them run.
--
-- The text is "depth running". A tenant's goes on with the labels of its lanes that are parked: they may be
-- served but for the number of messages that their tenant has in progress, and wait outside of their rings.

local SCOPE = '^(%d+) (%d+)(.*)$'

local function new_scope(step, kind, name, text)
  local depth, running, parked = string.match(text or '0 0', SCOPE)
  local scope = {
    kind = kind,
    name = name,
    depth = tonumber(depth),
    running = tonumber(running),
    parked = parked, -- each with a space before it
  }
  step.scopes[kind][name] = scope
  return scope
end

local function scope_of(step, kind, name)
  return step.scopes[kind][name]
    or new_scope(step, kind, name, redis.call('HGET', step.prefix .. ':' .. kind, name))
end

-- Reads the tenants of many lanes by one command, before they are asked for one by one.
local function fetch_tenants(step, lane_names)
  local names, seen = {}, {}
  for _, lane_name in ipairs(lane_names) do
    local name = string.match(lane_name, '^(.*):')
    if not seen[name] and not step.scopes.tenants[name] then
      seen[name] = true
      names[#names + 1] = name
    end
  end
  for first = 1, #names, CHUNK do
    local last = math.min(first + CHUNK - 1, #names)
    local texts = redis.call('HMGET', step.prefix .. ':tenants', unpack(names, first, last))
    for index = first, last do
      new_scope(step, 'tenants', names[index], texts[index - first + 1])
    end
  end
end

local function changed_scope(step, kind, name)
  local scope = scope_of(step, kind, name)
  if not scope.changed then
    scope.changed = true
    step.counted[#step.counted + 1] = scope
  end
  return scope
end

-- Counts so many messages more of a lane.
local function count(step, lane_name, depth, running)
  local tenant, label = string.match(lane_name, '^(.*):([^:]*)$')
  for _, scope in ipairs({ changed_scope(step, 'tenants', tenant), changed_scope(step, 'labels', label) }) do
    scope.depth = math.max(0, scope.depth + depth)
    scope.running = math.max(0, scope.running + running)
  end
  step.depth = step.depth + depth
  step.running = step.running + running
end

-- How many messages of all tenants have not ended (`depth`), or are in progress (`running`).
local function total(step, what)
  return tonumber(redis.call('HGET', step.prefix .. ':counters', what) or 0) + step[what]
end

-- How many more messages of a tenant may be in progress.
local function tenant_room(step, tenant)
  local most = step.limits.tenant_running
  return most and math.max(0, most - scope_of(step, 'tenants', tenant).running) or math.huge
end

-- Lets a lane wait until its tenant has fewer messages in progress.
local function park(step, lane)
  local tenant = changed_scope(step, 'tenants', lane.tenant)
  if not string.find(tenant.parked .. ' ', ' ' .. lane.label .. ' ', 1, true) then
    tenant.parked = tenant.parked .. ' ' .. lane.label
  end
end

-- Names of the parked lanes of tenants that have room again; they are parked no more.
local function unpark(step)
  local names = {}
  for _, scope in ipairs(step.counted) do
    if scope.kind == 'tenants' and scope.parked ~= '' and tenant_room(step, scope.name) > 0 then
      for label in string.gmatch(scope.parked, '%S+') do
        names[#names + 1] = scope.name .. ':' .. label
      end
      scope.parked = ''
    end
  end
  return names
end

local function write_total(step, what)
  if step[what] ~= 0 then
    redis.call('HINCRBY', step.prefix .. ':counters', what, step[what])
    step[what] = 0
  end
end

-- Writes the counts that have changed; those of whom nothing is left are dropped.
local function write_counts(step)
  local texts, gone = { labels = {}, tenants = {} }, { labels = {}, tenants = {} }
  for _, scope in ipairs(step.counted) do
    scope.changed = false
    if scope.depth + scope.running == 0 then
      table.insert(gone[scope.kind], scope.name)
    else
      table.insert(texts[scope.kind], scope.name)
      table.insert(texts[scope.kind], string.format('%d %d', scope.depth, scope.running) .. scope.parked)
    end
  end
  step.counted = {}
  for _, kind in ipairs({ 'labels', 'tenants' }) do
    in_chunks(texts[kind], function(...)
      redis.call('HSET', step.prefix .. ':' .. kind, ...)
    end)
    in_chunks(gone[kind], function(...)
      redis.call('HDEL', step.prefix .. ':' .. kind, ...)
    end)
  end
  write_total(step, 'depth')
  write_total(step, 'running')
end
