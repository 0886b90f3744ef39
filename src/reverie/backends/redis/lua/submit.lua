-- Submitting: a message takes its place at the end of its lane, or is kept aside until it is due.

local function insert(step, message, seq)
  local user, item_id, lane_name, task, due, fingerprint, details, body = unpack(message, 1, 8)
  local known = known_item(step, user, item_id)
  if known then
    local same = string.match(known.details, '"fingerprint":"(%x*)"') == fingerprint
    return same and 'duplicate' or 'conflict'
  end
  local item = {
    status = 'waiting',
    attempts = 0,
    losses = 0,
    submitted_at = step.now,
    started_at = 'null',
    entry = '',
    claim_id = '',
    note = '',
    details = string.format('%s,"seq":%d}', details, seq),
  }
  if due and due > step.now then
    delay_item(step, user, item_id, body, due, seq)
  else
    item.entry = place(lane_of(step, lane_name), item_id, body)
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
  if #messages == 0 then
    return answers
  end
  fetch_rows(step, messages)
  local seq = redis.call('INCRBY', step.prefix .. ':seq', #messages) - #messages
  for index, message in ipairs(messages) do
    answers[index] = insert(step, message, seq + index)
  end
  return answers
end
