-- Items: how each message stands, as JSON in its user's hash, and where its body is.
--
-- The JSON is written in one fixed order, so that it can be taken apart without decoding it:
-- what changes with every move, then `note` (when and how it ended, the last error), then `details`, which
-- never change and of which only those who ask for it read more.

local HEAD = '{"status":"%s","attempts":%d,"losses":%d,"submitted_at":%d,"started_at":%s,'
  .. '"redis_message_id":"%s","claim_id":"%s",%s%s'
local HEAD_PATTERN = '^{"status":"([a-z_]+)","attempts":(%d+),"losses":(%d+),"submitted_at":(%d+),'
  .. '"started_at":(%w+),"redis_message_id":"([%d-]*)","claim_id":"(%x*)",()'
local DETAILS = '"task_type":' -- begins the details; inside a JSON string its quotes would be escaped

local function parse_item(text)
  local status, attempts, losses, submitted, started, entry, claim_id, rest =
    string.match(text, HEAD_PATTERN)
  if not status then
    return { foreign = true, details = '' } -- written by another program
  end
  local details = string.find(text, DETAILS, rest, true)
  return {
    status = status,
    attempts = tonumber(attempts),
    losses = tonumber(losses),
    submitted_at = tonumber(submitted),
    started_at = started, -- as text: it may be null
    entry = entry, -- in the stream of its lane; empty when it is not there
    claim_id = claim_id, -- empty when nobody holds it
    note = string.sub(text, rest, details - 1),
    details = string.sub(text, details),
  }
end

local function item_text(item)
  return string.format(
    HEAD,
    item.status,
    item.attempts,
    item.losses,
    item.submitted_at,
    item.started_at,
    item.entry,
    item.claim_id,
    item.note,
    item.details
  )
end

-- What an item is about: the fields that never change.
local function details_of(item)
  return cjson.decode('{' .. item.details)
end

local function note_error(problem)
  return problem and '"error":' .. cjson.encode(problem) .. ',' or ''
end

-- One name for a message across all users: a user's encoded id has no ':'.
local function reference(user, item_id)
  return user .. ':' .. item_id
end

local function split_reference(text)
  return string.match(text, '^([^:]*):(.*)$')
end

local function user_of(step, id)
  local user = step.users[id]
  if not user then
    user = { key = step.status .. ':task_meta:' .. id, items = {}, changed = {} }
    step.users[id] = user
  end
  return user
end

-- Reads many items of one user by one command, before they are asked for one by one.
local function fetch_items(step, user_id, item_ids)
  local user = user_of(step, user_id)
  for first = 1, #item_ids, CHUNK do
    local last = math.min(first + CHUNK - 1, #item_ids)
    local texts = redis.call('HMGET', user.key, unpack(item_ids, first, last))
    for index = first, last do
      local text = texts[index - first + 1]
      if user.items[item_ids[index]] == nil then
        user.items[item_ids[index]] = text and parse_item(text)
      end
    end
  end
end

-- The same for rows that begin with user and item id, whatever their order.
local function fetch_rows(step, rows)
  local ids, users = {}, {}
  for _, row in ipairs(rows) do
    local user, item_id = row[1], row[2]
    if not ids[user] then
      ids[user] = {}
      users[#users + 1] = user
    end
    table.insert(ids[user], item_id)
  end
  for _, user in ipairs(users) do
    fetch_items(step, user, ids[user])
  end
end

-- Whatever stands under this id.
local function known_item(step, user_id, item_id)
  local user = user_of(step, user_id)
  if user.items[item_id] == nil then
    fetch_items(step, user_id, { item_id })
  end
  return user.items[item_id]
end

local function read_item(step, user_id, item_id)
  local item = known_item(step, user_id, item_id)
  return item and not item.foreign and item
end

local function write_item(step, user_id, item_id, item)
  local user = user_of(step, user_id)
  user.items[item_id] = item
  if #user.changed == 0 then
    step.changed[#step.changed + 1] = user
  end
  if not item.changed then
    item.changed = true
    user.changed[#user.changed + 1] = item_id
  end
end

local function write_items(step)
  for _, user in ipairs(step.changed) do
    local values = {}
    for _, item_id in ipairs(user.changed) do
      local item = user.items[item_id]
      item.changed = false
      values[#values + 1] = item_id
      values[#values + 1] = item_text(item)
    end
    user.changed = {}
    in_chunks(values, function(...)
      redis.call('HSET', user.key, ...)
    end)
  end
  step.changed = {}
end

-- Writes all that the step has collected.
local function finish(step)
  write_items(step)
  write_lanes(step)
  in_chunks(step.leased, function(...)
    redis.call('ZADD', step.prefix .. ':leases', ...)
  end)
  in_chunks(step.unleased, function(...)
    redis.call('ZREM', step.prefix .. ':leases', ...)
  end)
  in_chunks(step.expiring, function(...)
    redis.call('ZADD', step.prefix .. ':expiry', ...)
  end)
  step.leased, step.unleased, step.expiring = {}, {}, {}
end

-- The item of a claim that still stands.
local function held_item(step, user, item_id, claim_id)
  local item = read_item(step, user, item_id)
  return item and item.claim_id == claim_id and item
end

-- Keeps a message aside until it is due. Members of one due time are sorted as text, so that their number
-- keeps them in the order in which they were submitted.
local function delay_item(step, user, item_id, body, due, seq)
  local name = reference(user, item_id)
  redis.call('HSET', step.prefix .. ':delayed', name, body)
  redis.call('ZADD', step.prefix .. ':due', due, string.format('%016d:', seq) .. name)
  expect(step, due)
end

-- The body of a message that is in its lane.
local function body_in_lane(key, entry)
  local entries = redis.call('XRANGE', key, entry, entry)
  return entries[1] and entries[1][2][2]
end

-- Lets the entry of a message leave its lane.
local function withdraw(lane, item)
  lane.ended[#lane.ended + 1] = item.entry
  item.entry = ''
end

-- A dead letter keeps its body, and nothing removes it but a person.
local function bury(step, lane, user, item_id, item, problem)
  local body = body_in_lane(lane.key, item.entry)
  if body then
    redis.call('HSET', step.prefix .. ':dead', reference(user, item_id), body)
  end
  withdraw(lane, item)
  item.status = 'failed'
  item.note = string.format('"failed_at":%d,', step.now) .. note_error(problem)
end
