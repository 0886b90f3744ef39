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

  -- Gets ready to claim plain items by this request. All moments have as many digits as now; an item of which that is
  -- not true is taken apart like one that is not plain.
  function prepare_claims(step, request)
    step.plain_start = {
      length = #plain_beginning(step), -- of a head
      heads = {}, -- by head: how it goes on, and when those were submitted who have it; false if it is no plain one
      before_entry = string.format(',"started_at":%d,"redis_message_id":"', step.now),
      after_entry = string.format('","claim_id":"%s",', request.claim_id) .. step.run,
    }
  end

  local function read_waiting_head(start, head)
    local submitted = string.match(head, PLAIN_WAITING)
    local known = submitted
      and {
        text = '{"status":"in_progress","attempts":0,"losses":0,"submitted_at":' .. submitted .. start.before_entry,
        submitted_at = tonumber(submitted),
      }
    start.heads[head] = known or false
    return known
  end

  -- The text of a plain item that is claimed, and when it was submitted; nothing if it is not plain.
  function plain_claimed(step, text, entry)
    local start = step.plain_start
    local head = string.sub(text, 1, start.length)
    local known = start.heads[head]
    if known == nil then
      known = read_waiting_head(start, head)
    end
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
      heads = {}, -- by head: how it goes on; false if it is no plain one
      runs = {}, -- by claim id: what stands behind the entry, and will
      completed = '"completed_at":' .. now .. ',',
    }
  end

  local function read_running_head(finish, head)
    local times = string.match(head, PLAIN_RUNNING)
    local known = times and '{"status":"completed","attempts":1,' .. times or false
    finish.heads[head] = known
    return known
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
    local head = string.sub(text, 1, finish.length)
    local known = finish.heads[head]
    if known == nil then
      known = read_running_head(finish, head)
    end
    local run = known and (finish.runs[claim_id] or read_run(finish, text, claim_id))
    local behind = run and string.find(text, run.now, finish.length + 1, true)
    if not behind then
      return
    end
    local entry = string.sub(text, finish.length + 1, behind - 1)
    return known .. entry .. run.later .. string.sub(text, behind + #run.now), entry
  end
end
