-- Offers: standing requests of workers that found nothing and wait. A submit of few messages claims for one
-- of them in the same step, and leaves the answer in a list that the worker blocks on: its work begins after
-- one round trip.
--
-- A function cannot see whether a worker still blocks. It can see whether the worker is connected, because
-- the worker listens to a channel of its own.

local LOOKED_AT = 2 -- offers that one search looks at

local function hand_of(step, worker)
  return step.prefix .. ':hand:' .. encode(worker)
end

-- Keeps a request while its worker waits.
local function offer(step, request)
  redis.call('HSET', step.prefix .. ':offers', request.worker, cmsgpack.pack(request))
end

local function take_back(step, worker)
  redis.call('HDEL', step.prefix .. ':offers', worker)
end

-- Takes what was claimed for a standing request, if its worker has not read it.
local function take_hand(step, worker)
  local text = redis.call('LPOP', hand_of(step, worker))
  return text and cmsgpack.unpack(text) or nil
end

-- Gives a worker what was claimed for it, as `wire.Hand` reads it.
local function fill_hand(step, request, served)
  local hand = hand_of(step, request.worker)
  redis.call('RPUSH', hand, cmsgpack.pack({ step.now, served, request.claim_id, step.now + request.lease_ms }))
  redis.call('PEXPIRE', hand, request.lease_ms)
end

-- Narrows a request to one label; false if the label is not wanted.
local function narrow(request, label)
  for _, row in ipairs(request.wants) do
    if row[1] == label then
      request.wants = { row }
      return true
    end
  end
  return false
end

-- A standing request, narrowed to this label. Requests of workers that are gone are dropped.
local function find_offer(step, label)
  local found = redis.call('HRANDFIELD', step.prefix .. ':offers', LOOKED_AT, 'WITHVALUES')
  for index = 1, #found, 2 do
    local worker = found[index]
    local request = cmsgpack.unpack(found[index + 1])
    if narrow(request, label) then
      if redis.call('PUBSUB', 'NUMSUB', step.prefix .. ':worker:' .. encode(worker))[2] > 0 then
        return request
      end
      take_back(step, worker)
    end
  end
end
