-- Tenants: a user's cube each, the unit of limits. The counts of a tenant are sums over its lanes.
--
-- A lane is parked if it might be served, but its tenant has too much in progress. It waits outside of its
-- ring, and the hash `parked` has its label under the name of the tenant.

local function tenant_of(lane_name)
  return string.match(lane_name, '^[^:]*:[^:]*')
end

-- How many messages of a tenant have not ended, and how many of them are in progress.
local function tenant_counts(step, tenant)
  local user, cube = string.match(tenant, '^([^:]*):(.*)$')
  local depth, running = 0, 0
  for _, field in ipairs(redis.pcall('HKEYS', step.lanes_of .. user)) do -- what has a wrong type does not count
    if string.sub(field, 1, #cube + 1) == cube .. ':' then
      local lane = see_lane(step, user .. ':' .. field)
      local length = redis.pcall('XLEN', lane.key)
      depth = depth + lane.aside + (type(length) == 'number' and length or 0)
      running = running + pending_of(lane)
    end
  end
  return depth, running
end

-- How many more messages of a lane's tenant may be in progress.
local function tenant_room(step, lane_name)
  local most = step.limits.tenant_running
  if not most then
    return math.huge
  end
  local _, running = tenant_counts(step, tenant_of(lane_name))
  return math.max(0, most - running)
end

-- The labels of a tenant's parked lanes, each with a space before it.
local function parked_of(step, tenant)
  return redis.call('HGET', step.prefix .. ':parked', tenant) or ''
end

-- Lets a lane wait until its tenant has fewer messages in progress.
local function park(step, lane)
  local tenant = tenant_of(lane.name)
  local parked = parked_of(step, tenant)
  if not string.find(parked .. ' ', ' ' .. lane.label .. ' ', 1, true) then
    redis.call('HSET', step.prefix .. ':parked', tenant, parked .. ' ' .. lane.label)
    step.someone_parked = true
  end
end

-- Unparks lanes: for each of these lanes, if its tenant has room again, the parked lanes of that tenant are
-- touched.
local function unpark(step, lanes)
  look_aside(step)
  if not step.someone_parked then
    return
  end
  for _, lane in ipairs(lanes) do
    local tenant = tenant_of(lane.name)
    local parked = parked_of(step, tenant)
    local are_right = parked ~= '' and tenant_room(step, lane.name) > 0
    for label in string.gmatch(parked, '%S+') do
      are_right = are_right and types.may_serve(step, tenant .. ':' .. label)
    end
    if are_right then
      redis.call('HDEL', step.prefix .. ':parked', tenant)
      for label in string.gmatch(parked, '%S+') do
        lane_of(step, tenant .. ':' .. label)
      end
    end
  end
end
