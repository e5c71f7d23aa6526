-- The device that claims, its reservation, and which jobs fit there. Part of claim.lua, before claim_take.lua.
--
-- The act stays loaded in the server between calls (see ../functions.py). The arguments and the state of the device are
-- in these variables: each call sets all of them before it reads any. Other data that a call reads is in `cache`
-- (core.lua). Only `parsed` survives a call.
local host, device, worker, lease_ms, external, nonce, now, stamp
local available, pool, slots, total, all_slots, kind, capacity, external_bytes, runs -- results of room_of()
local r_job, r_need, r_start, r_likely, blockers, room_beside -- the reservation of the device; bytes others may use beside it
local priorities, choosy
local leases_here -- of the device, from HGETALL
local drained_from, calendar -- of the device: results of closing_of() (device_end.lua)
local viewer, device_end -- the user for end_for(), and the end of this device in ms; nil without

-- A shape's text alone determines what it asks for, so parsed shapes stay for later calls. Nothing changes them. A
-- damaged shape fits nowhere.
local parsed, many_parsed, MOST_PARSED = {}, 0, 1000
local function asked_by(shape)
  local asks = parsed[shape]
  if asks then return asks end
  local mem, limit_s, n, wanted_pool, wanted_kind, more = parse_shape(shape)
  asks = {mem = mem or math.huge, limit_s = limit_s, n = n, pool = wanted_pool, wanted_kind = wanted_kind, want = mem and constraints(more),
    rest = string.match(shape, ':.*')} -- everything but the memory
  if many_parsed == MOST_PARSED then parsed, many_parsed = {}, 0 end
  parsed[shape], many_parsed = asks, many_parsed + 1
  return asks
end

-- Store the observed bytes of the worker's runs. They are of the same sample as the external processes: otherwise one
-- figure would hide growth in the other.
local function note_observed(leases)
  local observed, noted = {}, {}
  for i = 8, #ARGV, 2 do observed[ARGV[i]] = ARGV[i + 1] end
  for i = 1, #leases, 2 do
    local bytes, before, rest = string.match(leases[i + 1], '^(%d+):(%d+):(.+)$')
    local seen = observed[leases[i]]
    if bytes and seen and seen ~= before then
      leases[i + 1] = bytes .. ':' .. seen .. ':' .. rest
      noted[#noted + 1], noted[#noted + 2] = leases[i], leases[i + 1]
    end
  end
  if noted[1] then call('HSET', key2('dl', device), unpack(noted)) end
end

-- Store the sample of the device that came with this claim. -> whether it has any room
local function store_sample(leases)
  local record = call('HGET', key2('dev', host), device)
  local before, after = string.match(record or '', '^(%d+:%d+):%d+:%d+:(.*)$')
  if not before then return false end
  record = before .. ':' .. external .. ':' .. stamp .. ':' .. after
  call('HSET', key2('dev', host), device, record)
  if #ARGV > 7 then note_observed(leases) end
  local _
  available, pool, _, slots, total, all_slots, kind, capacity, external_bytes, runs = room_of(host, device, record, leases)
  return available ~= nil and available > 0 and slots > 0
end

-- Return what a sampled device can allocate, in bytes.
local function free_on(name)
  return name == device and available or cache.free_on[name]
end

-- From here on, let the ends of devices count as for this user; nil: for users without a calendar reservation.
local function judge_for(user)
  if user ~= viewer then cache.peers, cache.gangs, cache.site = nil, nil, nil end
  viewer, device_end = user, end_for(drained_from, calendar, user)
end

local function are_limited() -- most sites have no limits; read once a job is found that fits
  if cache.limits_set == nil then cache.limits_set, cache.any_shares = exist(P .. 'limits', P .. 'shares') end
  return cache.limits_set
end

local function neighbours() -- the host's other devices of this kind, fullest first, in a fixed order
  if cache.peers then return cache.peers end
  local peers, free_there = cache_of('peers'), cache_of('free_on')
  local names = call('HKEYS', key2('dev', host))
  for i = 1, #names do
    local ends
    if names[i] ~= device then
      local first, reservations = closing_of(call('HGET', P .. 'drained', names[i]), now)
      ends = end_for(first, reservations, viewer)
    end
    if names[i] ~= device and (not ends or ends > now) then
      local free, its_pool, seen, its_slots, its_total, _, its_kind, gives, its_external, its_runs = room_of(host, names[i])
      if free and math.abs(now - seen) < SEEN_MS and its_slots > 0 and its_kind == kind then
        local reserved = parse_reservation(call('HGET', P .. 'rsv', names[i]))
        if reserved and are_limited() and reserved_in_vain(reserved, kind) then reserved = nil end -- its own claim drops it
        peers[#peers + 1] = {name = names[i], free = free, pool = its_pool, reserved = reserved, total = its_total,
          gives = gives + its_external, external_bytes = its_external, runs = its_runs, ends = ends}
        free_there[names[i]] = free
      end
    end
  end
  table.sort(peers, function(a, b)
    if a.free ~= b.free then return a.free < b.free end
    return a.name < b.name
  end)
  return peers
end

-- Choose well connected devices of this host for a job on several, this device first; all or none. If a set without
-- this device is better connected, `elsewhere` is a device of that set. `only_reserved`: only devices reserved for the job.
local function gang(asks, for_job, only_reserved)
  local names, want, most = {device}, asks.want, cache.kinds[asks.rest]
  if asks.n == 1 then return names end
  if kind == 'mig' then return nil end -- a CUDA process can use only one part of a GPU
  for _, peer in ipairs(neighbours()) do
    if peer.free >= asks.mem and belongs(asks.pool, asks.wanted_kind, want, host, peer.name, peer.pool, kind)
      and alone_there(want, peer.runs, peer.external_bytes, peer.total) and peer.gives <= most
      and over_in_time(asks, now, peer.ends) and (peer.reserved == for_job or not (peer.reserved or only_reserved)) then
      names[#names + 1] = peer.name
    end
  end
  if #names < asks.n then return nil end
  local devices, elsewhere = best_together(names, asks.n)
  devices.elsewhere = elsewhere
  return devices
end

-- Read the reservation of the device; drop it if it is in vain.
local function read_reservation(text, leases)
  r_job, r_need, r_start, r_likely, blockers, room_beside = nil, nil, nil, nil, nil, 0
  if not text then return end
  r_job, r_need, r_start, blockers, r_likely = parse_reservation(text)
  if r_job and are_limited() and reserved_in_vain(r_job, kind) then
    unreserve(r_job)
    r_job = nil
  end
  if not r_job then return end
  local bytes, places = left_beside(device, capacity, all_slots, r_need, blockers, leases)
  if places >= 1 then room_beside = math.max(bytes, 0) end
end

local function small_enough(priority) return call('ZCOUNT', key2('sh', priority), '-inf', available) end

-- Check everything but the memory; few jobs differ in that. -> the most that the device may give the job, or false
local function most_here(asks)
  local kinds = cache.kinds
  local most = kinds[asks.rest]
  if most == nil then
    most = belongs(asks.pool, asks.wanted_kind, asks.want, host, device, pool, kind) and alone_there(asks.want, runs, external_bytes, total)
      and (asks.want.alone and are_limited() and max_mem_of(asks.pool) or math.huge) -- max_mem_of: limits.lua
    if not most or capacity + external_bytes > most then most = false end
    kinds[asks.rest] = most
  end
  return most
end

-- -> the devices for a job of this shape | false
local function fits(shape)
  local asks = asked_by(shape)
  if asks.mem > available or not most_here(asks) then return false end
  if device_end and not over_in_time(asks, now, device_end) then return false end
  if r_job and not (asks.n == 1 and ((asks.mem <= room_beside and not asks.want.alone)
    or ends_before(asks, r_start, r_likely, now))) then return false end -- no room beside it, and not over in time
  if asks.n == 1 then return cache.only_this end
  local gangs = cache_of('gangs') -- shape -> the devices for it | false
  if gangs[shape] == nil then gangs[shape] = gang(asks, nil) or false end
  return gangs[shape]
end

-- Return what an exclusive run is charged on each of these devices; nil for other runs: their shape says it.
local function charged_on(devices, want)
  if not want.alone then return nil end
  local least = available
  for i = 2, #devices do least = math.min(least, free_on(devices[i])) end
  return least
end
local function over_a_limit(user, shape) -- only for a shape that fits
  return are_limited() and limit_in_the_way(user, shape, kind, charged_on(fits(shape), asked_by(shape).want)) ~= nil
end

