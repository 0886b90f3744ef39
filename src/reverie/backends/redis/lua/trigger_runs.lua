-- Runs of triggers, seen from their messages: an open message whose trigger does not know of it.

local function decode(text)
  return (string.gsub(text, '%%(%x%x)', function(digits)
    return string.char(tonumber(digits, 16))
  end))
end

-- Gives a trigger its run back, if the message of that run has not ended. A trigger whose hash is lost is made
-- anew; its count in the statistics stays as it is.
local function check_run(step, user, item_id, item)
  local details = item.rare.rules and string.find(item.details, '"user_key":', 1, true) and details_of(item)
  if not details then
    return
  end
  local kind, key = label_of(item), details.user_key
  local trigger = read_trigger(step, kind, key)
  if trigger and (trigger.running or trigger.item_id ~= item_id) then
    return
  end
  mend(step, trigger and 'trigger_runs' or 'trigger_hashes', function()
    if not trigger then
      trigger = read_trigger(step, kind, key, true)
      tally(step, kind, 'running', -1)
      if key ~= '' then
        set_trigger(step, trigger, 'user_id', decode(user))
      end
    end
    begin_run(step, trigger, item_id)
  end)
end
