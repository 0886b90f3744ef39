-- Lanes: each lane is a stream, which itself says what waits in it and what is claimed from it.
--
-- A hash for each user has a text for every lane that has work; the field is the lane's name without the
-- user. The text is empty, or "returned ordered min_idle_ms aside" if one of these is unusual: how many
-- entries were claimed before and handed back; whether one claim must end before the next; how long the lane
-- rests after a run; how many messages wait aside until they are due, or until those they depend on have
-- ended.

local UNUSUAL = '^(%d+) (%d) (%d+) (%d+)$'

-- The fields of most lanes. A touched lane is looked at and written at the end of the step.
local USUAL = {
  returned = 0,
  ordered = true,
  min_idle = 0,
  aside = 0,
  text = false, -- as it was read; false: it has none
  rest = false, -- until when it rests, 0 if it does not; false: not read yet
  streamed = false, -- whether it surely has a stream
  fresh = false, -- whether it has just begun, with messages that nobody has claimed
  off_ring = false, -- whether it surely is not in its ring
  touched = false,
  ended = false, -- entries that leave the stream
  back = false, -- entries that are handed back
  length = false, -- how many entries its stream has, if that is known
}
local LANE = { __index = USUAL }

-- Reads a lane by its name. `text` is its text in the user's hash, if the caller knows it.
local function read_lane(step, name, text)
  local user, field, label = string.match(name, '^([^:]*):([^:]*:([^:]*))$')
  local lane = setmetatable({
    name = name,
    user = user,
    field = field,
    label = label,
    key = step.stream_of .. name,
    text = text,
  }, LANE)
  if text == nil then
    lane.text = redis.call('HGET', step.lanes_of .. user, field)
  end
  if lane.text and lane.text ~= '' then
    local returned, ordered, min_idle, aside = string.match(lane.text, UNUSUAL)
    lane.returned, lane.ordered = tonumber(returned), ordered == '1'
    lane.min_idle, lane.aside = tonumber(min_idle), tonumber(aside)
  end
  lane.streamed = lane.text and lane.aside == 0
  step.lanes[name] = lane
  return lane
end

-- The lane of this name, only to be read.
local function see_lane(step, name)
  return step.lanes[name] or read_lane(step, name)
end

local function touch(step, lane)
  if not lane.touched then
    lane.touched = true
    step.touched[#step.touched + 1] = lane
  end
end

-- The lane of this name, to be written at the end of the step.
local function lane_of(step, name)
  local lane = see_lane(step, name)
  touch(step, lane)
  return lane
end

local function text_of(lane)
  if lane.ordered and lane.returned + lane.min_idle + lane.aside == 0 then
    return ''
  end
  local ordered = lane.ordered and 1 or 0
  return string.format('%d %d %d %d', lane.returned, ordered, lane.min_idle, lane.aside)
end

-- How many entries of a lane are claimed, and how many were handed back.
local function pending_of(lane)
  local summary, returned = redis.pcall('XPENDING', lane.key, GROUP), 0
  if summary.err then
    return 0, 0 -- it has no stream
  end
  for _, consumer in ipairs(summary[4] or {}) do
    if consumer[1] == RETURNED then
      returned = tonumber(consumer[2])
    end
  end
  return summary[1] - returned, returned
end

-- The last entry of a stream that was given to a consumer; nothing if the group is missing.
local function last_delivered(key)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local fields = {}
    for index = 1, #group, 2 do
      fields[group[index]] = group[index + 1]
    end
    if fields.name == GROUP then
      return fields['last-delivered-id']
    end
  end
end

-- Finds out whether any lane rests, and whether any is parked. Usually none is.
local function look_aside(step)
  if step.someone_rests == nil then
    local resting, parked = step.prefix .. ':resting', step.prefix .. ':parked'
    local found = redis.call('EXISTS', resting, parked)
    step.someone_rests = found == 2 or found == 1 and redis.call('EXISTS', resting) == 1
    step.someone_parked = found == 2 or found == 1 and not step.someone_rests
  end
end

-- Until when a lane rests, 0 if it does not.
local function rest_of(step, lane)
  if not lane.rest then
    look_aside(step)
    lane.rest = step.someone_rests and tonumber(redis.call('ZSCORE', step.prefix .. ':resting', lane.name)) or 0
  end
  return lane.rest
end

-- Lets a lane rest for `rest` milliseconds.
local function let_rest(step, lane, rest)
  local until_moment = step.now + rest
  if rest > 0 and until_moment > rest_of(step, lane) then
    lane.rest, step.someone_rests = until_moment, true
    redis.call('ZADD', step.prefix .. ':resting', until_moment, lane.name)
    expect(step, until_moment)
  end
end

-- Puts a message at the end of a stream, with the id `entry` if that is possible. The answer is the id of its
-- entry.
local function append(key, item_id, body, entry)
  local placed = entry and redis.pcall('XADD', key, entry, 'message', body, 'item_id', item_id)
  if placed and not placed.err then
    return placed
  end
  return redis.call('XADD', key, '*', 'message', body, 'item_id', item_id) -- an id after all that are there
end

-- Puts a message at the end of a lane: see `append`.
local function place(lane, item_id, body, entry)
  lane.length = false
  if not lane.streamed then
    redis.pcall('XGROUP', 'CREATE', lane.key, GROUP, '0', 'MKSTREAM') -- it may be there already
    lane.streamed, lane.fresh = true, not lane.text
  end
  return append(lane.key, item_id, body, entry)
end

-- Removes an entry from the stream when the lane is written.
local function remove_later(lane, entry)
  lane.ended = lane.ended or {}
  lane.ended[#lane.ended + 1] = entry
end

-- Hands an entry back when the lane is written: it keeps its place and is read before new ones.
local function hand_back(lane, entry)
  lane.back = lane.back or {}
  lane.back[#lane.back + 1] = entry
end

-- Takes a waiting entry out of its lane. Only an entry that was handed back has anything to acknowledge.
local function leave_lane(lane, entry)
  redis.call('XACK', lane.key, GROUP, entry)
  redis.call('XDEL', lane.key, entry)
  lane.fresh, lane.length = false, false
end

-- Counts `amount` messages of a lane that one claim does not hold any more, and lets the lane rest.
local function end_runs(step, lane, amount, claim_id, rest)
  step.released[claim_id] = (step.released[claim_id] or 0) + amount
  count(step, lane.label, 0, -amount)
  lane.off_ring = lane.ordered -- an ordered lane left its ring when it was claimed
  let_rest(step, lane, rest)
end
