-- Items: the status and details of each message, as JSON in its user's hash.
--
-- The JSON is written in one fixed order, so that it can be taken apart without decoding it. First come the
-- fields that change with every move. Then `rare` (fields that few items have), `run` (when and by whom it
-- was claimed, during the claim and after a completion), `note` (when and how it ended, the last error) and
-- `details`, which never change and are decoded only when they are asked for.

local RUN = '"claimed_at":%d,"worker":"%s",' -- the worker's name is encoded as in a key
local parse_item, item_text
do
  local HEAD = '{"status":"%s","attempts":%d,"losses":%d,"submitted_at":%d,"started_at":%s,'
    .. '"redis_message_id":"%s","claim_id":"%s",%s%s%s%s'
  local HEAD_PATTERN = '^{"status":"([a-z_]+)","attempts":(%d+),"losses":(%d+),"submitted_at":(%d+),'
    .. '"started_at":(%w+),"redis_message_id":"([%d-]*)","claim_id":"(%x*)",()'
  local RUN_PATTERN = '^"claimed_at":%d+,"worker":"[^"]*",()'
  local DETAILS = '"task_type":' -- begins the details; inside a JSON string its quotes would be escaped

  -- The rare fields, all of them numbers. A field that is a yes or no is 1 or missing.
  local RARE = {
    'requeues', -- how often a person has requeued it
    'conflicts', -- how many conflicts it has met in a row
    'cancel_requested', -- whether its run is to be cancelled
    'due', -- when it is due
    'waits_for', -- how many messages it still waits for
    'memos', -- whether it has memos
    'dependants', -- whether others wait for it
    'waiting_since', -- when it last came into its lane, if not at its submission
    'history', -- how many of its runs are remembered
    'rules', -- whether it has a deadline or a unique key, or is the run of a trigger
  }
  local IS_RARE = {
    requeues = true,
    conflicts = true,
    cancel_requested = true,
    due = true,
    waits_for = true,
    memos = true,
    dependants = true,
    waiting_since = true,
    history = true,
    rules = true,
  }

  local function parse_rare(text, position)
    local rare = {}
    while true do
      local name, value, after = string.match(text, '^"([a-z_]+)":(-?%d+),()', position)
      if not name or not IS_RARE[name] then
        return rare, position
      end
      rare[name], position = tonumber(value), after
    end
  end

  function parse_item(text)
    local status, attempts, losses, submitted, started, entry, claim_id, rest =
      string.match(text, HEAD_PATTERN)
    if not status then
      return { foreign = true, details = '' } -- written by another program
    end
    local rare, run = parse_rare(text, rest)
    local note = string.match(text, RUN_PATTERN, run) or run
    local details = string.find(text, DETAILS, note, true)
    return {
      status = status,
      attempts = tonumber(attempts),
      losses = tonumber(losses),
      submitted_at = tonumber(submitted),
      started_at = started, -- as text: it may be null
      entry = entry, -- in the stream of its lane; empty when it is not there
      claim_id = claim_id, -- empty when nobody holds it
      rare = rare,
      run = string.sub(text, run, note - 1), -- empty when nobody holds it
      note = string.sub(text, note, details - 1),
      details = string.sub(text, details),
    }
  end

  local function rare_text(rare)
    local parts = {}
    for _, name in ipairs(RARE) do
      if rare[name] then
        parts[#parts + 1] = string.format('"%s":%d,', name, rare[name])
      end
    end
    return table.concat(parts)
  end

  function item_text(item)
    return string.format(
      HEAD,
      item.status,
      item.attempts,
      item.losses,
      item.submitted_at,
      item.started_at,
      item.entry,
      item.claim_id,
      next(item.rare) and rare_text(item.rare) or '',
      item.run,
      item.note,
      item.details
    )
  end
end

-- The details of an item, decoded.
local function details_of(item)
  return cjson.decode('{' .. item.details)
end

-- A single detail, found by its name in quotes without decoding the rest: quotes inside of a value are
-- escaped.
local function detail_in(details, name, pattern)
  local _, last = string.find(details, name, 1, true)
  return last and string.match(details, pattern, last + 1)
end

local function detail(item, name, pattern)
  return detail_in(item.details, name, pattern)
end

local function lane_name(item)
  item.lane = item.lane or detail(item, '"lane":', '^"([^"]*)"')
  return item.lane
end

local function label_of(item)
  return string.match(lane_name(item), '[^:]*$')
end

local function fingerprint_in(details)
  return detail_in(details, '"fingerprint":', '^"(%x*)"')
end

local function seq_of(item)
  item.seq = item.seq or tonumber(detail(item, '"seq":', '^%d+'))
  return item.seq
end

-- By when an item must have started. A requeued item has no deadline.
local function deadline_of(item)
  return not item.rare.requeues and tonumber(detail(item, '"deadline":', '^-?%d+') or nil)
end

-- Since when a message waits, or has waited until it was claimed.
local function waiting_since(item)
  return item.rare.waiting_since or item.submitted_at
end

-- Notes that a message waits in its lane from now on.
local function wait_from_now(step, item)
  item.rare.waiting_since = step.now ~= item.submitted_at and step.now or nil
end

local function note_error(problem)
  return problem and '"error":' .. cjson.encode(problem) .. ',' or ''
end

-- The name of a message among those of all users: a user's encoded id has no ':'.
local function reference(user, item_id)
  return user .. ':' .. item_id
end

local function split_reference(text)
  return string.match(text, '^([^:]*):(.*)$')
end

-- The key of something that belongs to one message; the key of a lane has another number of parts.
local function key_of(step, kind, user, item_id)
  return step.prefix .. ':' .. kind .. ':' .. encode(reference(user, item_id))
end

local function user_of(step, id)
  local user = step.users[id]
  if not user then
    user = { key = step.meta_of .. id, items = {}, changed = {} }
    step.users[id] = user
  end
  return user
end

-- Reads many items of one user by one command, before they are asked for one by one.
local function fetch_items(step, user_id, item_ids)
  local user, unknown = user_of(step, user_id), {}
  for _, item_id in ipairs(item_ids) do
    if user.items[item_id] == nil then
      unknown[#unknown + 1] = item_id
    end
  end
  for first = 1, #unknown, CHUNK do
    local last = math.min(first + CHUNK - 1, #unknown)
    local texts = redis.pcall('HMGET', user.key, unpack(unknown, first, last))
    if texts.err then
      types.check_key(step, user.key, 'hash')
    end
    for index = first, last do
      local text = texts[index - first + 1]
      user.items[unknown[index]] = text and parse_item(text)
    end
  end
end

-- Reads the items of rows that begin with user and item id, in any order.
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

-- The item of this id, even one that another program has written; false if there is none.
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

-- The known items of these names, in the order in which they were submitted.
local function read_all(step, names)
  local rows = {}
  for index, name in ipairs(names) do
    rows[index] = { split_reference(name) }
  end
  fetch_rows(step, rows)
  local found = {}
  for _, row in ipairs(rows) do
    local item = read_item(step, row[1], row[2])
    if item then
      found[#found + 1] = { user = row[1], id = row[2], item = item }
    end
  end
  table.sort(found, function(one, other)
    return seq_of(one.item) < seq_of(other.item)
  end)
  return found
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
    send('HSET', user.key, values)
  end
  step.changed = {}
end

-- The item of a claim, if the claim still holds it.
local function held_item(step, user, item_id, claim_id)
  local item = read_item(step, user, item_id)
  return item and item.claim_id == claim_id and item
end

-- The row of a message for a worker or a view: see `MessageRow` in `wire.py`.
local function message_row(item, body)
  local requeues, conflicts = item.rare.requeues or 0, item.rare.conflicts or 0
  local since = waiting_since(item)
  return { body, item.entry, item.submitted_at, since, item.attempts, item.losses, requeues, conflicts }
end
