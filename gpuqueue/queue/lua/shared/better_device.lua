-- Finds a better device for the job that this device is about to claim. Goes before claim.lua.
--
-- Workers claim independently, and the first to claim need not have the best device. So a device may leave a job to a
-- better one: it publishes `for:<device>` on the wake-up channel, and records in the job (pl) when that was. After
-- LEAVE_MS any device takes the job: no job waits longer for a better device, whatever happens to that one.
local LEAVE_MS, MOST_LEFT, better_device, leave_to
do
LEAVE_MS, MOST_LEFT = 200, 8 -- jobs left in one claim, at most: each costs three calls
local MOST_LEASES = 32 -- at most so many other devices have their leases read, this host first
local TIE = 1 / 64 -- of a device's memory; a smaller gain is not worth a wait

local UNKNOWN = 50 -- percent: a run of unknown utilisation counts as this; same figure as in gpuqueue.model.placement
local STEP = 10 -- percent; a smaller gain is not worth a wait
local ABOUT = 8 -- shares that are equal to an eighth count as equal for devices of different sizes
local MIB = 2 ^ 20
local SIZE_UNIT, SHARE_UNIT, STEP_UNIT = 2 ^ 7, 2 ^ 31, 2 ^ 36 -- of rank_of: each counts more than all before it

-- Return the utilisation that the runs with these leases (from HGETALL) are expected to have together, in steps.
local function busy_steps(leases)
  local sum = 0
  for i = 2, #leases, 2 do sum = sum + (tonumber(string.match(leases[i], ':(%d+):%w+$')) or UNKNOWN) end
  return math.floor(sum / STEP + 0.5)
end

-- Return the rank of a device in the order s (spread): by the share of its memory that is free, headroom apart. Of
-- about equal shares the smaller device is better, so that small jobs leave the largest one to jobs that need it.
local function rank_of(available, total, usable)
  local share = math.max(0, math.min(1, available / math.max(1, usable)))
  return math.floor(share * ABOUT + 0.5) * SHARE_UNIT - math.floor(total / MIB) * SIZE_UNIT + math.floor(share / TIE)
end

-- Return the device of the site that should have this job in place of `here`, in the order s (spread), p (pack) or l
-- (least busy, then spread); nil if none is better by more than TIE or a STEP. here: {host, device, kind, available,
-- total, usable, leases, user: as in end_for}
function better_device(here, mem, asks, order, now)
  -- Return the site's other devices of this kind that take jobs now: {name, host, pool, record, room, available}.
  local function others(host, device, kind, user, now)
    if cache.site then return cache.site end
    local site = {}
    cache.site = site
    local hosts, drained, reserved = call('SMEMBERS', P .. 'hosts'), {}, {}
    table.sort(hosts, function(a, b) return a ~= b and (a == host or (b ~= host and a < b)) end)
    for h = 1, #hosts do
      local records, here = call('HGETALL', key2('dev', hosts[h])), {}
      for i = 1, #records, 2 do
        local total, headroom, external, seen, slots, pool, its = parse_record(records[i + 1])
        if total and records[i] ~= device and its == kind and tonumber(slots) > 0 and math.abs(now - seen) < SEEN_MS then
          here[#here + 1] = {name = records[i], host = hosts[h], pool = pool, record = records[i + 1],
            room = total - headroom - external, total = total, usable = total - headroom}
        end
      end
      table.sort(here, function(a, b) return a.name < b.name end)
      for i = 1, #here do site[#site + 1] = here[i] end
    end
    if #site == 0 then return site end
    local texts = call('HGETALL', P .. 'drained')
    for i = 1, #texts, 2 do drained[texts[i]] = texts[i + 1] end
    for _, name in ipairs(call('HKEYS', P .. 'rsv')) do reserved[name] = true end
    local open = {}
    for i = 1, #site do
      local first, calendar = closing_of(drained[site[i].name], now)
      site[i].ends = end_for(first, calendar, user)
      if (not site[i].ends or site[i].ends > now) and not reserved[site[i].name] then open[#open + 1] = site[i] end
    end
    cache.site = open
    return open
  end

  local function available_on(other) -- -> bytes; 0 without a free slot, or beyond MOST_LEASES
    if not other.available then
      other.available = 0
      local read = cache.leases_read or 0
      if read < MOST_LEASES then
        cache.leases_read = read + 1
        local leases = call('HGETALL', key2('dl', other.name))
        local free, _, _, slots = room_of(other.host, other.name, other.record, leases)
        if slots > 0 then other.available, other.leases = free, leases end
      end
    end
    return other.available
  end

  local busy = order == 'l' and busy_steps(here.leases) or 0
  local rank = rank_of(here.available, here.total, here.usable)
  local tie, best, most = order == 'p' and here.total * TIE or 0, nil, nil
  for _, other in ipairs(others(here.host, here.device, here.kind, here.user, now)) do
    -- an upper bound of what it is worth, before its leases are read
    local worth = order == 'p' or busy > 0 or rank_of(other.room, other.total, other.usable) > rank
    if worth and other.room >= mem and over_in_time(asks, now, other.ends) and belongs(asks.pool, asks.wanted_kind, asks.want, other.host, other.name, other.pool, here.kind) then
      local bytes = available_on(other)
      local gain = order == 'p' and here.available - bytes or rank_of(bytes, other.total, other.usable) - rank
      if order == 'l' and bytes >= mem then gain = gain + (busy - busy_steps(other.leases)) * STEP_UNIT end
      if bytes >= mem and gain > tie and (not most or gain > most) then best, most = other.name, gain end
    end
  end
  return best
end

-- Leave a job to another device, unless it has been left for long enough. -> whether it was left
function leave_to(device, id, now)
  local left = cache.left or 0 -- jobs left so far in this claim
  if left == MOST_LEFT then return false end
  local since = tonumber(call('HGET', job_key(id), F.left_since_ms) or '')
  if since and (now - since >= LEAVE_MS or now < since) then return false end -- the latter: the clock was set
  if not since then call('HSET', job_key(id), F.left_since_ms, whole(now)) end
  wake('for:' .. device)
  cache.left = left + 1
  return true
end
end
