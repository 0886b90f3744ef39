-- Counts: how many messages of each label, and of all labels together, have not ended, and how many of them
-- run.
--
-- The text of a scope begins with "depth running". For all labels together it goes on with the last numbers
-- that were given: to a message, and to a lane's turn. For one label it goes on with the ended messages that
-- are kept (completed, failed, cancelled), how many ever completed and ever failed, and when one last
-- completed.

local SCOPE = '^(%d+) (%d+)(.*)$'
local ENDED = { 'completed', 'failed', 'cancelled', 'completed_ever', 'failed_ever', 'last_completed_at' }
local DRAINED = '^0 0 0 0 0 ' -- begins the text of a label of which no message is kept
local ALL = '' -- the name of all labels together, among the labels

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

local function read_scope(step, name, text)
  local depth, running, rest = string.match(text or '0 0', SCOPE)
  local scope = { name = name, depth = tonumber(depth), running = tonumber(running), known = text and true }
  if name == ALL then
    local seq, turn = string.match(rest, '^ (%d+) (%d+)$')
    scope.seq, scope.turn = tonumber(seq or 0), tonumber(turn or 0)
  else
    scope.ended = read_ended(rest)
  end
  step.scopes[name] = scope
  return scope
end

local function scope_of(step, name)
  return step.scopes[name] or read_scope(step, name, redis.call('HGET', step.prefix .. ':labels', name))
end

-- Reads the counts of a label and of all labels together, at once.
local function see_scopes(step, label)
  if not step.scopes[label] and not step.scopes[ALL] then
    local texts = redis.call('HMGET', step.prefix .. ':labels', label, ALL)
    read_scope(step, label, texts[1])
    read_scope(step, ALL, texts[2])
  end
end

-- The counts of all labels together.
local function total(step)
  return scope_of(step, ALL)
end

local function mark(step, scope)
  if not scope.changed then
    scope.changed = true
    step.counted[#step.counted + 1] = scope
  end
end

local function add(step, scope, depth, running)
  scope.depth = math.max(0, scope.depth + depth)
  scope.running = math.max(0, scope.running + running)
  mark(step, scope)
end

-- Adds to the number of messages of a label that have not ended, and to the number of those that run.
local function count(step, label, depth, running)
  see_scopes(step, label)
  add(step, scope_of(step, label), depth, running)
  add(step, total(step), depth, running)
end

-- Adds `amount` to the number of kept messages of a label that have ended with this status.
local function count_ended(step, label, status, amount)
  local scope = scope_of(step, label)
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

-- Takes the numbers for `amount` messages; the answer is the number before the first.
local function take_numbers(step, amount)
  local all = total(step)
  mark(step, all)
  all.seq = all.seq + amount
  return all.seq - amount
end

local function scope_text(scope)
  local text = string.format('%d %d', scope.depth, scope.running)
  if scope.name == ALL then
    return text .. string.format(' %d %d', scope.seq, scope.turn)
  end
  for _, name in ipairs(ENDED) do
    text = text .. string.format(' %d', scope.ended[name])
  end
  return text
end

-- Whether all counts of a label are zero.
local function is_blank(scope)
  local ended = scope.ended
  return ended and scope.depth + scope.running + ended.completed_ever + ended.failed_ever + ended.cancelled == 0
end

-- The labels of a submit that the queue has no counts of. Their counts are read for this, and written later.
local function new_labels(step)
  local new = {}
  for _, label in ipairs(step.request.labels or { step.request.label }) do
    if not scope_of(step, label).known then
      new[#new + 1] = label
    end
  end
  return new
end

-- Whether the queue has room for this many new labels. If not, labels of which no message is kept are forgotten first.
local function has_room_for(step, amount)
  local key, most = step.prefix .. ':labels', step.limits.labels
  if amount == 0 or not most then
    return true
  end
  local function fits()
    return redis.call('HLEN', key) - (total(step).known and 1 or 0) + amount <= most
  end
  if fits() then
    return true
  end
  local texts, gone = redis.call('HGETALL', key), {}
  for index = 1, #texts, 2 do
    local label, text = texts[index], texts[index + 1]
    if label ~= ALL and not step.scopes[label] and string.find(text .. ' ', DRAINED) then
      gone[#gone + 1] = label
    end
  end
  send('HDEL', key, gone)
  return fits()
end

-- Writes the counts that have changed, and removes those that are all zero.
local function write_counts(step)
  local texts, gone = {}, {}
  for _, scope in ipairs(step.counted) do
    scope.changed = false
    if is_blank(scope) then
      gone[#gone + 1] = scope.name
    else
      texts[#texts + 1] = scope.name
      texts[#texts + 1] = scope_text(scope)
    end
  end
  step.counted = {}
  send('HSET', step.prefix .. ':labels', texts)
  send('HDEL', step.prefix .. ':labels', gone)
end
