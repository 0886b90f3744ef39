-- Sharing a worker's free slots among levels and labels, by the rules of `reverie.backends.fair_share`.
--
-- `give(want, slots)` claims for one label and answers how many messages it gave.

local serve_shares
do
  local function by_level(wants, max_wait)
    local levels, groups = {}, {}
    for _, want in ipairs(wants) do
      local level = math.max(1, want.level - math.floor(want.waited / max_wait))
      if not groups[level] then
        groups[level] = {}
        levels[#levels + 1] = level
      end
      table.insert(groups[level], want)
    end
    table.sort(levels)
    return levels, groups
  end

  local function serve_label(shares, want, slots)
    slots = math.min(slots, want.left)
    if slots <= 0 then
      return 0
    end
    local used = math.min(slots, math.ceil(shares.give(want, slots) / want.per_slot))
    want.left = used == slots and want.left - used or 0 -- if it used fewer, it has no more
    shares.free = shares.free - used
    return used
  end

  -- Serves the labels of one level; the answer is how many slots they took.
  local function serve_level(shares, level, wants, taken, evenly)
    local room = shares.rooms[level]
    local allowed = shares.free
    if room then
      allowed = evenly and room.share or room.most
    end
    local start = math.max(0, math.min(shares.free, allowed - taken))
    local quota = start
    for index, want in ipairs(wants) do
      local portion = evenly and math.ceil(quota / (#wants - index + 1)) or quota
      quota = quota - serve_label(shares, want, portion)
    end
    return start - quota
  end

  -- Gives each level its share, then the slots that others have left.
  function serve_shares(request, wants, max_wait, give)
    local shares = { free = request.slots, rooms = {}, give = give }
    for _, row in ipairs(request.levels) do
      shares.rooms[row[1]] = { share = row[2], most = row[3] }
    end
    local levels, groups = by_level(wants, max_wait)
    local taken = {}
    for _, level in ipairs(levels) do
      taken[level] = serve_level(shares, level, groups[level], 0, true)
    end
    for _, level in ipairs(levels) do
      serve_level(shares, level, groups[level], taken[level], false)
    end
  end
end
