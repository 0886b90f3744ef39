-- Unique keys: for each unique key of a lane, a sorted set of the messages that have it, by their numbers.
-- The set goes when no message has the key any more: an ended message has it until its window is over.

local function unique_key(step, lane, encoded)
  return step.prefix .. ':unique:' .. lane .. ':' .. encoded
end

-- The key of the set that an item belongs to, and until when the item belongs to it after its end.
local function unique_of(step, item)
  local encoded = detail(item, '"unique":', '^"([^"]*)"')
  if encoded then
    local window = tonumber(detail(item, '"unique_window_ms":', '^%d+') or 0)
    return unique_key(step, lane_name(item), encoded), item.submitted_at + window
  end
end

-- The messages that have a unique key: lists of those that wait, that run, and that have ended within their
-- window.
local function holders_of(step, key, user)
  local holders = { waiting = {}, in_progress = {}, ended = {}, until_moment = 0 }
  local ids = redis.call('ZRANGE', key, 0, -1)
  fetch_items(step, user, ids)
  for _, item_id in ipairs(ids) do
    local item = read_item(step, user, item_id)
    local _, until_moment = unique_of(step, item or { details = '' })
    if item and holders[item.status] then
      table.insert(holders[item.status], { id = item_id, item = item })
    elseif item and until_moment > step.now then
      table.insert(holders.ended, { id = item_id, item = item })
      holders.until_moment = math.max(holders.until_moment, until_moment)
    else
      redis.call('ZREM', key, item_id)
    end
  end
  return holders
end

-- Lets a message have its unique key, when it is accepted or requeued.
local function take_unique(step, item_id, item)
  local key = unique_of(step, item)
  if key then
    redis.call('ZADD', key, seq_of(item), item_id)
    redis.call('PERSIST', key)
  end
end

-- Lets the set of an ended message's unique key expire after the last window, if no other message needs it.
local function return_unique(step, user, item)
  local key = unique_of(step, item)
  local holders = key and holders_of(step, key, user)
  if key and #holders.waiting + #holders.in_progress == 0 and holders.until_moment > 0 then
    redis.call('PEXPIRE', key, holders.until_moment - step.now + MARGIN_MS)
  end
end

local function forget_unique(step, item_id, item)
  local key = unique_of(step, item)
  if key then
    redis.call('ZREM', key, item_id)
  end
end
