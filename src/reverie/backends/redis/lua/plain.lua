-- Plain items: items without rare fields, as most are. They are moved without taking each apart. The items of
-- one submit have the same head (the text before the entry), and the items of one claim have the same run.
-- Each head and each run is read once in a step.

local plain_beginning, plain_waiting, prepare_claims, plain_claimed, prepare_completions, plain_completed
do
  local PLAIN_BEGINNING = '{"status":"waiting","attempts":0,"losses":0,"submitted_at":%d,"started_at":null,'
    .. '"redis_message_id":"'
  local PLAIN_WAITING = '^{"status":"waiting","attempts":0,"losses":0,"submitted_at":(%d+),"started_at":null,'
    .. '"redis_message_id":"$'
  local PLAIN_RUNNING = '^{"status":"in_progress","attempts":0,("losses":0,"submitted_at":%d+,"started_at":%d+,'
    .. '"redis_message_id":")$'
  local PLAIN_RUN = '^","claim_id":"(%x+)",("claimed_at":%d+,"worker":"[^"]*",)"task_type":'
  local UNCLAIMED = '","claim_id":"",'
  local UNCLAIMED_PLAIN = UNCLAIMED .. '"task_type":'

  -- The head of a new item: its text before its entry.
  function plain_beginning(step)
    return string.format(PLAIN_BEGINNING, step.now)
  end

  -- The text of a new waiting item, made of its head, entry, details and number.
  function plain_waiting(beginning, entry, details, seq)
    return beginning .. entry .. UNCLAIMED .. details .. ',"seq":' .. seq .. '}'
  end

  -- A table that calls `read` for what it does not know, once for each key; false if there is nothing.
  local function remembering(read)
    return setmetatable({}, {
      __index = function(known, key)
        known[key] = read(key) or false
        return known[key]
      end,
    })
  end

  -- Prepares to claim plain items for this request. Heads are found by their length, with as many digits in
  -- all moments as now has; an item with another number of digits counts as not plain.
  function prepare_claims(step, request)
    local before_entry = string.format(',"started_at":%d,"redis_message_id":"', step.now)
    step.plain_start = {
      length = #plain_beginning(step), -- of a head
      after_entry = string.format('","claim_id":"%s",', request.claim_id) .. step.run,
      heads = remembering(function(head) -- of a claimed item up to its entry, and when it was submitted
        local submitted = string.match(head, PLAIN_WAITING)
        local begin = '{"status":"in_progress","attempts":0,"losses":0,"submitted_at":'
        return submitted and { text = begin .. submitted .. before_entry, submitted_at = tonumber(submitted) }
      end),
    }
  end

  -- The text of a plain item after its claim, and when it was submitted; nothing if it is not plain.
  function plain_claimed(step, text, entry)
    local start = step.plain_start
    local known = start.heads[string.sub(text, 1, start.length)]
    local rest = start.length + #entry + 1
    if not known or string.find(text, UNCLAIMED_PLAIN, rest, true) ~= rest then
      return
    end
    return known.text .. entry .. start.after_entry .. string.sub(text, rest + #UNCLAIMED), known.submitted_at
  end

  -- Prepares to complete plain items.
  function prepare_completions(step)
    local now = string.format('%d', step.now)
    step.plain_end = {
      length = #'{"status":"in_progress","attempts":0,"losses":0,"submitted_at":,"started_at":,"redis_message_id":"'
        + 2 * #now, -- of a head
      heads = remembering(function(head) -- of a completed item up to its entry
        local times = string.match(head, PLAIN_RUNNING)
        return times and '{"status":"completed","attempts":1,' .. times
      end),
      runs = {}, -- by claim id: the text behind the entry, before and after
      completed = '"completed_at":' .. now .. ',',
    }
  end

  -- Reads the run of a claim in the text of one of its items; nothing if the claim does not hold the item.
  local function read_run(finish, text, claim_id)
    local behind = string.find(text, '"', finish.length + 1, true)
    local holder, run = string.match(text, PLAIN_RUN, behind)
    if holder ~= claim_id then
      return
    end
    local found = {
      now = '","claim_id":"' .. claim_id .. '",' .. run .. '"task_type":',
      later = UNCLAIMED .. run .. finish.completed .. '"task_type":',
    }
    finish.runs[claim_id] = found
    return found
  end

  -- The text of a plain item after its completion, and its entry; nothing if it is not plain or not held.
  function plain_completed(step, text, claim_id)
    local finish = step.plain_end
    local known = finish.heads[string.sub(text, 1, finish.length)]
    local run = known and (finish.runs[claim_id] or read_run(finish, text, claim_id))
    local behind = run and string.find(text, run.now, finish.length + 1, true)
    if not behind then
      return
    end
    local entry = string.sub(text, finish.length + 1, behind - 1)
    return known .. entry .. run.later .. string.sub(text, behind + #run.now), entry
  end
end
