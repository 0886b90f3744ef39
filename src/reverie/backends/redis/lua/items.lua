-- Items: how each message stands, as JSON in its user's hash, and where its body is.

-- One name for a message across all users: a user's encoded id has no ':'.
local function reference(user, item_id)
  return user .. ':' .. item_id
end

local function split_reference(text)
  return string.match(text, '^([^:]*):(.*)$')
end

local function read_item(step, user, item_id)
  local text = redis.call('HGET', step.status .. ':task_meta:' .. user, item_id)
  return text and cjson.decode(text)
end

local function write_item(step, user, item_id, item)
  redis.call('HSET', step.status .. ':task_meta:' .. user, item_id, cjson.encode(item))
end

-- The item of a claim that still stands.
local function held_item(step, user, item_id, claim_id)
  local item = read_item(step, user, item_id)
  return item and item.claim_id == claim_id and item
end

-- Equal due times keep the order of submission, because members of one score are sorted as text.
local function due_member(user, item_id, item)
  return string.format('%016.0f:', item.seq) .. reference(user, item_id)
end

-- Keeps a message aside until it is due.
local function delay_item(step, user, item_id, item, body, due)
  redis.call('HSET', step.prefix .. ':delayed', reference(user, item_id), body)
  redis.call('ZADD', step.prefix .. ':due', due, due_member(user, item_id, item))
  expect(step, due)
end

-- Reserves numbers for `count` messages; the answer is the one before the first.
local function reserve(step, count)
  return redis.call('INCRBY', step.prefix .. ':seq', count) - count
end

local function insert(step, message, seq)
  local user, item_id, lane_name, task, label, cube, task_id, level, due, fingerprint, body =
    unpack(message, 1, 11)
  local known = read_item(step, user, item_id)
  if known then
    return known.fingerprint == fingerprint and 'duplicate' or 'conflict'
  end
  local item = {
    status = 'waiting',
    task_type = label,
    mem_cube_id = cube,
    task_id = task_id,
    submitted_at = step.now,
    attempts = 0,
    losses = 0,
    level = level,
    fingerprint = fingerprint,
    lane = lane_name,
    seq = seq,
  }
  if due and due > step.now then
    delay_item(step, user, item_id, item, body, due)
  else
    item.redis_message_id = place(lane_of(step, lane_name), item_id, body)
  end
  write_item(step, user, item_id, item)
  if task then
    redis.call('SADD', step.status .. ':task_items:' .. user .. ':' .. task, item_id)
  end
  return 'accepted'
end

-- Accepts messages in their order; the answer has one word for each.
local function insert_all(step, messages)
  local answers = {}
  if #messages > 0 then
    local seq = reserve(step, #messages)
    for index, message in ipairs(messages) do
      answers[index] = insert(step, message, seq + index)
    end
  end
  return answers
end

-- The body of a message that is in its lane.
local function body_in_lane(prefix, item)
  local entry = item.redis_message_id
  local entries = redis.call('XRANGE', prefix .. ':' .. item.lane, entry, entry)
  return entries[1] and entries[1][2][2]
end

-- Takes the body of a message out of its lane.
local function withdraw(step, lane, item)
  local body = body_in_lane(step.prefix, item)
  lane.ended[#lane.ended + 1] = item.redis_message_id
  item.redis_message_id = nil
  return body
end

-- A dead letter keeps its body, and nothing removes it but a person.
local function bury(step, lane, user, item_id, item)
  local body = withdraw(step, lane, item)
  if body then
    redis.call('HSET', step.prefix .. ':dead', reference(user, item_id), body)
  end
  item.status, item.failed_at = 'failed', step.now
end
