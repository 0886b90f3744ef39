-- Counts: how many messages of each label, of each tenant and of all have not ended, and how many of them run.
--
-- The text is "depth running". A tenant's goes on with the labels of its lanes that are parked: they may be
-- served but for the number of messages that their tenant has in progress, and wait outside of their rings. The
-- text of all goes on with the last numbers that were given: of a message, and of a lane's turn. A label's goes
-- on with how many have ended and are kept, by how they ended; how many ever have; and when one last completed.

local SCOPE = '^(%d+) (%d+)(.*)$'
local ENDED = { 'completed', 'failed', 'cancelled', 'completed_ever', 'failed_ever', 'last_completed_at' }
local ALL = '' -- stands among the labels for all of them

local function read_ended(text)
  local ended, index = {}, 0
  for number in string.gmatch(text, '%d+') do
    index = index + 1
    ended[ENDED[index]] = tonumber(number)
  end
  for _, name in ipairs(ENDED) do
    ended[name] = ended[name] or 0
  end
  return ended
end

local function new_scope(step, kind, name, text)
  local depth, running, rest = string.match(text or '0 0', SCOPE)
  local scope = {
    kind = kind,
    name = name,
    depth = tonumber(depth),
    running = tonumber(running),
    parked = rest, -- each with a space before it
  }
  if name == ALL then
    local seq, turn = string.match(rest, '^ (%d+) (%d+)$')
    scope.seq, scope.turn = tonumber(seq or 0), tonumber(turn or 0)
  elseif kind == 'labels' then
    scope.ended = read_ended(rest)
  end
  step.scopes[kind][name] = scope
  return scope
end

local function scope_of(step, kind, name)
  return step.scopes[kind][name]
    or new_scope(step, kind, name, redis.call('HGET', step.prefix .. ':' .. kind, name))
end

-- The tenant and the label that a lane belongs to.
local function split_lane(step, lane_name)
  local lane = step.lanes[lane_name]
  if lane then
    return lane.tenant, lane.label
  end
  return string.match(lane_name, '^(.*):([^:]*)$')
end

local function fetch_kind(step, kind, names)
  for first = 1, #names, CHUNK do
    local last = math.min(first + CHUNK - 1, #names)
    local texts = redis.call('HMGET', step.prefix .. ':' .. kind, unpack(names, first, last))
    for index = first, last do
      new_scope(step, kind, names[index], texts[index - first + 1])
    end
  end
end

-- Reads whose counts many lanes are part of by few commands, before they are asked for one by one.
local function fetch_scopes(step, lane_names)
  local unknown, seen = { labels = {}, tenants = {} }, {}
  local function want(kind, name)
    if not seen[name] and not step.scopes[kind][name] then -- a tenant's name has a ':', a label's has none
      seen[name] = true
      table.insert(unknown[kind], name)
    end
  end
  want('labels', ALL)
  for _, lane_name in ipairs(lane_names) do
    local tenant, label = split_lane(step, lane_name)
    want('tenants', tenant)
    want('labels', label)
  end
  fetch_kind(step, 'labels', unknown.labels)
  fetch_kind(step, 'tenants', unknown.tenants)
end

local function mark(step, scope)
  if not scope.changed then
    scope.changed = true
    step.counted[#step.counted + 1] = scope
  end
end

-- Whose counts a lane's messages are part of.
local function scopes_of(step, lane_name)
  local scopes = step.scopes.lanes[lane_name]
  if not scopes then
    local tenant, label = split_lane(step, lane_name)
    scopes = {
      scope_of(step, 'tenants', tenant),
      scope_of(step, 'labels', label),
      scope_of(step, 'labels', ALL),
    }
    step.scopes.lanes[lane_name] = scopes
  end
  return scopes
end

-- Counts so many messages more of a lane.
local function count(step, lane_name, depth, running)
  for _, scope in ipairs(scopes_of(step, lane_name)) do
    scope.depth = math.max(0, scope.depth + depth)
    scope.running = math.max(0, scope.running + running)
    mark(step, scope)
  end
end

-- Counts so many messages more of a lane that have ended in this way and are kept.
local function count_ended(step, lane_name, status, amount)
  local scope = scopes_of(step, lane_name)[2]
  local ended, ever = scope.ended, status .. '_ever'
  ended[status] = math.max(0, ended[status] + amount)
  if amount > 0 and ended[ever] then
    ended[ever] = ended[ever] + amount
  end
  if amount > 0 and status == 'completed' then
    ended.last_completed_at = step.now
  end
  mark(step, scope)
end

-- How many messages of all tenants have not ended, and are in progress.
local function total(step)
  return scope_of(step, 'labels', ALL)
end

-- Gives out numbers: `seq` for messages, `turn` for lanes; the answer is the one before the first.
local function take_numbers(step, what, amount)
  local all = total(step)
  mark(step, all)
  all[what] = all[what] + amount
  return all[what] - amount
end

-- How many more messages of a tenant may be in progress.
local function tenant_room(step, tenant)
  local most = step.limits.tenant_running
  return most and math.max(0, most - scope_of(step, 'tenants', tenant).running) or math.huge
end

-- Lets a lane wait until its tenant has fewer messages in progress.
local function park(step, lane)
  local tenant = scope_of(step, 'tenants', lane.tenant)
  mark(step, tenant)
  if not string.find(tenant.parked .. ' ', ' ' .. lane.label .. ' ', 1, true) then
    tenant.parked = tenant.parked .. ' ' .. lane.label
  end
end

-- Names of the parked lanes of tenants that have room again, if there are any; they are parked no more.
local function unpark(step)
  local names
  for _, scope in ipairs(step.counted) do
    if scope.kind == 'tenants' and scope.parked ~= '' and tenant_room(step, scope.name) > 0 then
      names = names or {}
      for label in string.gmatch(scope.parked, '%S+') do
        names[#names + 1] = scope.name .. ':' .. label
      end
      scope.parked = ''
    end
  end
  return names
end

local function scope_text(scope)
  local text = string.format('%d %d', scope.depth, scope.running)
  if scope.ended then
    for _, name in ipairs(ENDED) do
      text = text .. string.format(' %d', scope.ended[name])
    end
    return text
  end
  return text .. (scope.seq and string.format(' %d %d', scope.seq, scope.turn) or scope.parked)
end

-- Whether there is nothing to be said of it: no message, and none that has ended.
local function is_blank(scope)
  local ended = scope.ended
  return scope.depth + scope.running == 0
    and scope.name ~= ALL
    and not (ended and ended.completed_ever + ended.failed_ever + ended.cancelled > 0)
end

-- Writes the counts that have changed; those of whom nothing is left are dropped.
local function write_counts(step)
  if #step.counted == 0 then
    return
  end
  local texts, gone = { labels = {}, tenants = {} }, { labels = {}, tenants = {} }
  for _, scope in ipairs(step.counted) do
    scope.changed = false
    if is_blank(scope) then
      table.insert(gone[scope.kind], scope.name)
    else
      table.insert(texts[scope.kind], scope.name)
      table.insert(texts[scope.kind], scope_text(scope))
    end
  end
  step.counted = {}
  for kind, names in pairs(gone) do
    send('HSET', step.prefix .. ':' .. kind, texts[kind])
    send('HDEL', step.prefix .. ':' .. kind, names)
  end
end
