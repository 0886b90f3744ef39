-- Mending: what the steps of a repair have in common. This text comes at the beginning of each of them.
--
-- A queue is mended after keys were lost or changed by hand. The truth is in the streams, in the bodies that
-- wait aside and in the items; everything else is made from these. `repair.lua` looks from the entries to
-- their items, `reindex.lua` from the items to what points to them, and `recount.lua` counts. Every call is
-- one step, so that workers may go on meanwhile, and leaves alone what is right. With `dry`, in a dry run,
-- nothing is written.

local OPEN = { waiting = true, in_progress = true }
local NAME_OF_LANE = '^[^:]*:[^:]*:[^:]*$'

local function open_mending(arguments)
  local step = open_step(arguments)
  step.mended = {}
  return step
end

-- Notes that something was wrong, and lets `act` put it right unless this is a dry run.
local function mend(step, what, act)
  step.mended[what] = (step.mended[what] or 0) + 1
  if not step.request.dry then
    act()
  end
end

-- Writes what was mended. The answer begins with the kinds of damage, and how often each was found.
local function close_mending(step, ...)
  local mended = {}
  for what, times in pairs(step.mended) do
    mended[#mended + 1] = { what, times }
  end
  if not step.request.dry then
    finish(step)
    tell_horizon(step)
  end
  return cmsgpack.pack({ step.now, mended, ... })
end

local function is_in_lane(step, item)
  return item.entry ~= '' and body_in_lane(step.stream_of .. lane_name(item), item.entry) ~= nil
end

local function has_body_aside(step, user, item_id)
  return redis.call('HEXISTS', step.prefix .. ':delayed', reference(user, item_id)) == 1
end

local function register(name, callback)
  redis.register_function({
    function_name = LIBRARY .. '_' .. name,
    callback = callback,
    flags = { 'allow-oom' },
  })
end

