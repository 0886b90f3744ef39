-- Offers: requests of workers that found nothing and wait. A submit of few messages claims for one of them in the
-- same step, and leaves the answer in a list that the worker blocks on: its work begins after one round trip.
--
-- Whether a worker still blocks cannot be seen here, but whether it is there: it listens to a channel of its own.

local LOOKED_AT = 2 -- offers that it looks at

local function hand_of(step, worker)
  return step.prefix .. ':hand:' .. encode(worker)
end

-- Lets a request stand while its worker waits.
local function offer(step, request)
  redis.call('HSET', step.prefix .. ':offers', request.worker, cmsgpack.pack(request))
end

local function take_back(step, worker)
  redis.call('HDEL', step.prefix .. ':offers', worker)
end

-- What was claimed for a request that stood, if its worker has not read it.
local function take_hand(step, worker)
  local text = redis.call('LPOP', hand_of(step, worker))
  return text and cmsgpack.unpack(text) or nil
end

-- Gives a worker what was claimed for it: as `wire.Hand` reads it.
local function fill_hand(step, request, served)
  local hand = hand_of(step, request.worker)
  redis.call('RPUSH', hand, cmsgpack.pack({ step.now, served, request.claim_id, step.now + request.lease_ms }))
  redis.call('PEXPIRE', hand, request.lease_ms)
end

-- Asks for this label only; false if it is not wanted.
local function narrow(request, label)
  for _, row in ipairs(request.wants) do
    if row[1] == label then
      request.wants = { row }
      return true
    end
  end
  return false
end

-- A request that stands, as far as it is for work of this label. Those of workers that are gone are dropped.
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
