-- Plain items: nothing rare is known of them, as of most. They are moved without taking each apart: those of one submit
-- have the same head, up to their entry, and those of one claim the same run. Each of these is read once in a step.

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

  -- How the text of a new item begins, up to its entry in its lane.
  function plain_beginning(step)
    return string.format(PLAIN_BEGINNING, step.now)
  end

  -- The text of a new item that waits, of its beginning, its details and its number.
  function plain_waiting(beginning, entry, details, seq)
    return beginning .. entry .. UNCLAIMED .. details .. ',"seq":' .. seq .. '}'
  end

  -- A table that asks `read` for what it does not know, once for each key; false where there is nothing.
  local function remembering(read)
    return setmetatable({}, {
      __index = function(known, key)
        known[key] = read(key) or false
        return known[key]
      end,
    })
  end

  -- Gets ready to claim plain items by this request. All moments have as many digits as now; an item of which that is
  -- not true is taken apart like one that is not plain.
  function prepare_claims(step, request)
    local before_entry = string.format(',"started_at":%d,"redis_message_id":"', step.now)
    step.plain_start = {
      length = #plain_beginning(step), -- of a head
      after_entry = string.format('","claim_id":"%s",', request.claim_id) .. step.run,
      heads = remembering(function(head) -- how a plain one goes on, and when those were submitted who have it
        local submitted = string.match(head, PLAIN_WAITING)
        local begin = '{"status":"in_progress","attempts":0,"losses":0,"submitted_at":'
        return submitted and { text = begin .. submitted .. before_entry, submitted_at = tonumber(submitted) }
      end),
    }
  end

  -- The text of a plain item that is claimed, and when it was submitted; nothing if it is not plain.
  function plain_claimed(step, text, entry)
    local start = step.plain_start
    local known = start.heads[string.sub(text, 1, start.length)]
    local rest = start.length + #entry + 1
    if not known or string.find(text, UNCLAIMED_PLAIN, rest, true) ~= rest then
      return
    end
    return known.text .. entry .. start.after_entry .. string.sub(text, rest + #UNCLAIMED), known.submitted_at
  end

  -- Gets ready to complete plain items.
  function prepare_completions(step)
    local now = string.format('%d', step.now)
    step.plain_end = {
      length = #'{"status":"in_progress","attempts":0,"losses":0,"submitted_at":,"started_at":,"redis_message_id":"'
        + 2 * #now, -- of a head
      heads = remembering(function(head) -- how a plain one goes on
        local times = string.match(head, PLAIN_RUNNING)
        return times and '{"status":"completed","attempts":1,' .. times
      end),
      runs = {}, -- by claim id: what stands behind the entry, and will
      completed = '"completed_at":' .. now .. ',',
    }
  end

  -- The run of a claim, as it stands in this item behind its head; nothing if the claim does not hold it.
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

  -- The text of a plain item that is completed, and its stream entry; nothing if it is not plain or not held.
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
