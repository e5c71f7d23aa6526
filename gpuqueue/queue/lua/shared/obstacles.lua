-- What keeps a waiting job from each device, by the rules of a claim. Goes after capacity.lua; SHARED in ../scripts.py
-- lists the scripts that use it.
local read_site, holder_of, fits_beside, obstacles_on, wait_reason
do
-- Read all devices. -> {{host, devices: {device, ...}}, ...} in the order of the hosts' names. Of a device: what
-- `room_of` returns, its leases and runs, its end, its calendar reservations, and its reservation.
function read_site(now)
  local site, drained, reserved = {}, {}, {}
  local texts = call('HGETALL', P .. 'drained')
  for i = 1, #texts, 2 do drained[texts[i]] = texts[i + 1] end
  texts = call('HGETALL', P .. 'rsv')
  for i = 1, #texts, 2 do reserved[texts[i]] = texts[i + 1] end
  local hosts = call('SMEMBERS', P .. 'hosts')
  table.sort(hosts)
  for _, host in ipairs(hosts) do
    local records, devices = call('HGETALL', key2('dev', host)), {}
    for i = 1, #records, 2 do
      local name, record = records[i], records[i + 1]
      local leases = call('HGETALL', key2('dl', name))
      local available, pool, seen, slots, total, all_slots, kind, capacity, external = room_of(host, name, record, leases)
      if available then
        local holder, need, start, blockers, likely = parse_reservation(reserved[name])
        local ends, calendar = closing_of(drained[name], now)
        devices[#devices + 1] = {name = name, host = host, record = record, leases = leases, available = available,
          pool = pool, seen = seen, slots = slots, total = total, all_slots = all_slots, kind = kind,
          capacity = capacity, external = external, runs = runs_on(name, total, nil, leases), ends = ends, calendar = calendar,
          holder = holder, need = need, start = start, blockers = blockers, likely = likely}
      end
    end
    site[#site + 1] = {host = host, devices = devices}
  end
  return site
end

-- Return the job that the device is reserved for; nil if none, or if another job's reservation is in vain.
function holder_of(device, id)
  if not device.holder or device.holder == id then return device.holder end
  if device.in_vain == nil then device.in_vain = reserved_in_vain(device.holder, device.kind) end
  return not device.in_vain and device.holder or nil
end

-- Return whether a job on one device fits beside the job that the device is reserved for, once these runs have ended.
function fits_beside(device, asks, blockers)
  local bytes, places = left_beside(device.name, device.capacity, device.all_slots, device.need, blockers, device.leases)
  return asks.n == 1 and asks.mem <= bytes and places >= 1 and not asks.want.alone
end

local function is_reserved_for_another(device, job, asks, now)
  local holder = holder_of(device, job.id)
  if not holder or holder == job.id then return false end
  local is_over_before = asks.n == 1 and ends_before(asks, device.start, device.likely, now)
  return not (is_over_before or fits_beside(device, asks, device.blockers))
end

-- Return whether a limit leaves the job no room on a device of this kind, charged with so many bytes (nil: unknown).
-- The first case in which it does is in `limited_on`.
local function is_limited(job, kind, charged)
  if not limits_set() then return false end
  job.is_limited = job.is_limited or {}
  local known, case = job.is_limited, kind .. ' ' .. (charged or '')
  if known[case] == nil then known[case] = limit_in_the_way(job.user, job.shape, kind, charged) ~= nil end
  if known[case] then job.limited_on = job.limited_on or {kind, charged} end
  return known[case]
end

-- Return the first obstacle between the job and the device; `fits` if there is none.
local function obstacle(device, job, asks, now)
  local want, gives = asks.want, device.capacity + device.external
  if asks.pool ~= '' and asks.pool ~= device.pool then return 'pool' end
  if not suits(asks.wanted_kind, device.kind) then return 'kind' end
  if not is_named(want.devices, device.name) then return 'named' end
  if not of_model(want.models, device.name) then return 'model' end
  if is_excluded(want, device.host) then return 'excluded' end
  if asks.n > 1 and device.kind == 'mig' then return 'part' end
  if asks.mem > gives then return 'too_small' end
  if gives > asks.most then return 'too_large' end
  if device.ends and device.ends <= now then return 'drained' end
  local ends = end_for(device.ends, device.calendar, job.user)
  if ends and ends <= now then return 'calendar' end
  if not over_in_time(asks, now, ends) then return 'end' end
  if math.abs(now - device.seen) > SEEN_MS then return 'silent' end
  if #device.runs == 1 and device.runs[1].alone then return 'exclusive' end
  if not alone_there(want, #device.runs, device.external, device.total) then return 'occupied' end
  if asks.mem > device.available then return 'memory' end
  if device.slots <= 0 then return 'slots' end
  if is_reserved_for_another(device, job, asks, now) then return 'reserved' end
  if job.state == 'held' or (job.reason or '') ~= '' then return 'not_yet' end
  return is_limited(job, device.kind, asks.n == 1 and want.alone and device.available or nil) and 'limit' or 'fits'
end

-- Return the obstacle on each of these devices of one host. A job on several devices gets devices of one kind, all or
-- none, and an exclusive one is charged on each of them what the smallest has available.
function obstacles_on(devices, job, asks, now)
  local found, count, least = {}, {}, {}
  for i, device in ipairs(devices) do
    found[i] = obstacle(device, job, asks, now)
    if found[i] == 'fits' then
      local kind = device.kind
      count[kind], least[kind] = (count[kind] or 0) + 1, math.min(least[kind] or math.huge, device.available)
    end
  end
  for i, device in ipairs(asks.n > 1 and devices or {}) do
    if found[i] == 'fits' and count[device.kind] < asks.n then found[i] = 'alone'
    elseif found[i] == 'fits' and asks.want.alone and is_limited(job, device.kind, least[device.kind]) then
      found[i] = 'limit'
    end
  end
  return found
end

-- Obstacles in the order in which wait_reason ignores them, one after the other.
local RANKS = {fits = 1, alone = 1, limit = 2, reserved = 3, slots = 4, memory = 5, exclusive = 5, occupied = 5, silent = 6,
  ['end'] = 7, calendar = 8, drained = 9, too_large = 10, too_small = 11}

-- Return why a queued job waits for a device.
function wait_reason(site, job, now)
  local asks = asks_of(job.shape, job.user)
  local most, lost = {}, false -- rank -> the most devices of one host and kind up to this rank; whether a host lost its GPUs
  for _, on_host in ipairs(site) do
    local ranks = {} -- kind -> rank -> devices
    for i, found in ipairs(obstacles_on(on_host.devices, job, asks, now)) do
      local rank, kind = RANKS[found], on_host.devices[i].kind
      lost = lost or found == 'kind' and kind == 'cpu-lost'
      if rank then
        ranks[kind] = ranks[kind] or {}
        ranks[kind][rank] = (ranks[kind][rank] or 0) + 1
      end
    end
    for _, counts in pairs(ranks) do
      local sum = 0
      for rank = 1, RANKS.too_small do
        sum = sum + (counts[rank] or 0)
        most[rank] = math.max(most[rank] or 0, sum)
      end
    end
  end
  local function some(rank) return (most[rank] or 0) > 0 end
  local function enough(rank) return (most[rank] or 0) >= asks.n end
  local function only_for(rank) -- these obstacles alone leave the job too few devices
    return some(rank) and (not some(rank - 1) or enough(rank) and not enough(rank - 1))
  end
  if not some(RANKS.too_small) then return lost and 'no_gpu' or 'device' end
  if pausing(now) then return 'pause' end
  if some(RANKS.too_large) and not some(RANKS.drained) then return 'limit' end
  if only_for(RANKS.drained) then return 'drained' end
  if only_for(RANKS.calendar) then return 'calendar' end
  if only_for(RANKS['end']) then return 'end' end
  if only_for(RANKS.silent) then return 'silent' end
  if limit_in_the_way(job.user, job.shape, least_kind(job.shape)) then return 'limit' end
  if enough(RANKS.fits) then return 'memory' end -- it starts when it is its turn
  if enough(RANKS.limit) then return 'limit' end
  if enough(RANKS.reserved) then return 'reservation' end
  return enough(RANKS.slots) and 'slots' or 'memory'
end
end
