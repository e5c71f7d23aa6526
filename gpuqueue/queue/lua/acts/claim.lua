-- Assign the next job to a device and allocate the memory, in one step.
-- Order: priority, then the least-served user, then that user's jobs by position. A job that does not fit is passed
-- over.
-- How a run came to its start: `immediate` no job that might run there was ahead, `backfill` it fitted where the jobs
-- ahead did not, `reserved` the device was reserved for it.
-- A job may be left to a better device for a moment (see better_device.lua).
-- arrow: queued -> starting
-- ARGV: host  device  worker  lease_ms  external (bytes of external processes)  nonce  1 if the host serves GPUs, then
--   for each of the worker's runs: id  observed bytes here
-- returns {} | {ms until the next claim, because a job was left} | {id, token, spec, attempt, mem, devices
--   (comma-separated), claimed ms, and of a member of an array: its array, whose spec that is, and its index}
--
-- The act stays loaded in the server between calls (see ../functions.py). The arguments and the state of the device are
-- in these variables: each call sets all of them before it reads any. Other data that a call reads is in `cache`
-- (core.lua). Only `parsed` survives a call.
local host, device, worker, lease_ms, external, nonce, now, stamp
local available, pool, slots, total, all_slots, kind, capacity, external_bytes, runs -- results of room_of()
local r_job, r_need, r_start, blockers, room_beside -- the reservation of the device; bytes others may use beside it
local priorities, choosy
local leases_here -- of the device, from HGETALL

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

local function spec_for(id, array)
  if not array then return call('GET', key2('s', id)) end
  return spec_of(id, array)
end

-- Answer a claim that was sent twice because the reply was lost, unless another run has the job by now. The device's
-- leases (from HGETALL) have the nonce of their claim.
local function answer_again(leases)
  local mark, id = ':' .. nonce, nil
  for i = 2, #leases, 2 do
    if string.sub(leases[i], -#mark) == mark then id = leases[i - 1] end
  end
  if not id then return nil end
  local j = call('HMGET', job_key(id), F.state, F.token, F.attempts, F.mem_bytes, F.devices, F.claimed_ms, F.array,
    F.index, F.shape)
  if j[1] ~= 'starting' or j[2] ~= (j[3] or '') .. '.' .. nonce then return {} end
  local mem = j[4]
  if wants_alone(j[9] or '') and j[5] then mem = string.format('%.0f', allocated_to(id, j[5]) or 0) end
  return {id, j[2], spec_for(id, j[7]), j[3], mem, j[5], j[6], j[7] or nil, j[8] or nil}
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

local function neighbours() -- the host's other devices of this kind, fullest first, in a fixed order
  if cache.peers then return cache.peers end
  local peers, free_there = cache_of('peers'), cache_of('free_on')
  local names = call('HKEYS', key2('dev', host))
  for i = 1, #names do
    if names[i] ~= device and call('HEXISTS', P .. 'drained', names[i]) == 0 then
      local free, its_pool, seen, its_slots, its_total, _, its_kind, gives, its_external, its_runs = room_of(host, names[i])
      if free and math.abs(now - seen) < SEEN_MS and its_slots > 0 and its_kind == kind then
        local reserved = parse_reservation(call('HGET', P .. 'rsv', names[i]))
        peers[#peers + 1] = {name = names[i], free = free, pool = its_pool, reserved = reserved, total = its_total,
          gives = gives + its_external, external_bytes = its_external, runs = its_runs}
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
      and (peer.reserved == for_job or not (peer.reserved or only_reserved)) then
      names[#names + 1] = peer.name
    end
  end
  if #names < asks.n then return nil end
  local devices, elsewhere = best_together(names, asks.n)
  devices.elsewhere = elsewhere
  return devices
end

local function are_limited() -- most sites have no limits; read once a job is found that fits
  if cache.limits_set == nil then cache.limits_set, cache.any_shares = exist(P .. 'limits', P .. 'shares') end
  return cache.limits_set
end

-- Read the reservation of the device; drop it if it is in vain.
local function read_reservation(text, leases)
  r_job, r_need, r_start, blockers, room_beside = nil, nil, nil, nil, 0
  if not text then return end
  r_job, r_need, r_start, blockers = parse_reservation(text)
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
      and (asks.want.alone and are_limited() and most_alone(asks.pool) or math.huge) -- most_alone: limits.lua
    if not most or capacity + external_bytes > most then most = false end
    kinds[asks.rest] = most
  end
  return most
end

-- -> the devices for a job of this shape | false
local function fits(shape)
  local asks = asked_by(shape)
  if asks.mem > available or not most_here(asks) then return false end
  if r_job and not (asks.n == 1 and ((asks.mem <= room_beside and not asks.want.alone)
    or ends_before(asks.limit_s, r_start, now))) then return false end -- no room beside it, and not over in time
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

local function take(id, priority, user, shape, devices, how)
  local j = call('HMGET', job_key(id), F.state, F.mem_bytes, F.attempts, F.losses, F.started_ms, F.left, F.array,
    F.index, F.left_since_ms, F.reserved)
  local array, index, left = j[7] or nil, j[8] or nil, nil
  if j[10] then unreserve(id) end
  if j[1] == 'queued' and j[6] then -- the rest of the array stays in the queue
    if j[9] then call('HDEL', job_key(id), F.left_since_ms) end
    array = id
    id, index, left = split(array, j[6], now)
    if not id then return nil end
  else
    leave_queue(id, priority, user, shape)
    if j[1] ~= 'queued' then return nil end -- a stale entry, removed above
  end
  local asks = asked_by(shape)
  local limit_s, n, alone = asks.limit_s, asks.n, asks.want.alone
  -- Fields lost from a damaged entry come from the shape, or start over: nothing below may fail half-way.
  local mem = string.match(j[2] or '', '^%d+$') or string.match(shape, '^%d+')
  local attempt, losses = to_count(j[3]) + 1, to_count(j[4])
  local token = attempt .. '.' .. nonce
  local names = table.concat(devices, ',')
  local spec = spec_for(id, array)
  if limit_s > 0 then -- the shape's limit is rounded up; quotes in strings of a spec are escaped
    local _, at = string.find(spec or '', '"time_limit_s":', 1, true)
    limit_s = math.min(limit_s, at and tonumber(string.match(spec, '^[%d.]+', at + 1)) or limit_s)
  end
  local usual_s = call('HGET', P .. 'usual', user) or ''
  local deposit_s = math.min(tonumber(usual_s) or DEPOSIT_S, DEPOSIT_S)
  if limit_s > 0 then deposit_s = math.min(deposit_s, limit_s) end
  local rate, held = n * math.max(tonumber(mem) / total, 1 / all_slots), mem
  local busy = (asks.want.order or meta().order) == 'l' and busy_in(spec) or nil
  if alone then -- exclusive: everything each device can allocate; reported is the smallest
    rate, mem = n, string.format('%.0f', charged_on(devices, asks.want))
  end
  if j[5] or j[9] then call('HDEL', job_key(id), F.started_ms, F.start_report, F.left_since_ms, F.preempted_by,
    F.preempt_until_ms) end
  if cache.limits_set then drop_reserved_room(user, shape) end
  call('HSET', job_key(id), F.state, 'starting', F.attempts, attempt, F.token, token, F.worker, worker,
    F.host, host, F.devices, names,
    F.claimed_ms, stamp, F.claimed_fair_ms, fair_ms(now), F.deposit_s, deposit_s, F.usual_s, usual_s,
    F.rate, rate, F.start_kind, how, F.reason, '')
  local ends = limit_s > 0 and string.format('%.0f', now + limit_s * 1000) or '0'
  for i = 1, #devices do
    if alone then held = string.format('%.0f', free_on(devices[i])) end
    call('HSET', key2('dl', devices[i]), id, lease_of(held, ends, alone, busy, nonce))
  end
  call('ZADD', P .. 'leases', now + lease_ms, id)
  count_run(id, user, mem, names)
  charge(user, deposit_s * rate * weight(fair_ms(now)), cache.any_shares == false and 1000 or share_of(user), priorities)
  record_event('claim', id, 'starting', now, attempt, losses, '', 'token', token, 'host', host,
    'worker', worker, 'devices', names, 'lease', mem, 'start', how, unpack(left and {'of', array, 'index', index, 'left', left} or {}))
  return {id, token, spec, tostring(attempt), mem, names, stamp, array, index and tostring(index)}
end

-- Claim the job that this device is reserved for, before all others. -> the claim | nil
local function take_reserved()
  local j = call('HMGET', job_key(r_job), F.state, F.priority, F.user, F.shape)
  if j[1] ~= 'queued' then
    call('HDEL', P .. 'rsv', device)
    r_job = nil
    return nil
  end
  local user, shape, devices, beyond = j[3], j[4], nil, nil
  local asks = asked_by(shape or '')
  local ready = asks.mem <= available and most_here(asks)
  for _, only_reserved in ipairs(ready and {false, true} or {}) do -- the reserved devices may pass a limit that others exceed
    devices = gang(asks, r_job, only_reserved)
    beyond = devices and asks.want.alone and are_limited() and limit_in_the_way(user, shape, kind, charged_on(devices, asks.want))
    if not beyond then break end
  end
  if beyond then -- a smaller device might do; this reservation is in vain
    unreserve(r_job)
    r_job = nil
    return nil
  end
  if not devices then return nil end
  local taken = take(r_job, j[2], user, shape, devices, 'reserved')
  if not taken then r_job = nil end -- the job had nothing left to claim; its reservation is gone
  return taken
end

local function might_run(shape) -- ever on this device
  local here = cache.here
  if here[shape] == nil then
    local asks = asked_by(shape)
    here[shape] = asks.mem <= total and belongs(asks.pool, asks.wanted_kind, asks.want, host, device, pool, kind)
  end
  return here[shape]
end

local FEW = 4 -- the match is mostly among the first shapes
local function any_belongs(shapes_key, most)
  local from, to = 0, math.min(most, FEW)
  repeat
    local shapes = call('ZRANGE', shapes_key, from, to - 1)
    for i = 1, #shapes do
      if might_run(shapes[i]) then return true end
    end
    from, to = to, most
  until from == most or #shapes < FEW
  return false
end

-- Return how a job came to its start: did it pass a job ahead that might run here? `rank` is the user's, from 0.
-- `place` is the rank of the shape among the user's shapes, nil if unknown.
local function how_it_came(priority, user, shape, rank, place)
  for _, above in ipairs(priorities) do
    if above == priority then break end
    if any_belongs(key2('sh', above), 100) then return 'backfill' end
  end
  local before = math.min(rank, 64) -- users checked at most
  for _, other in ipairs(before > 0 and call('ZRANGE', key2('ul', priority), 0, before - 1) or {}) do
    if any_belongs(key3('us', priority, other), 100) then return 'backfill' end
  end
  place = place or call('ZRANK', key3('us', priority, user), shape)
  return place > 0 and any_belongs(key3('us', priority, user), place) and 'backfill' or 'immediate'
end

local function leave_elsewhere(id, shape) -- to a better device
  local asks = asked_by(shape)
  if asks.n > 1 then
    local elsewhere = fits(shape).elsewhere
    if not elsewhere then return false end
    return leave_to(elsewhere, id, now)
  end
  local order = asks.want.order or meta().order
  if asks.want.alone or order == '' then return false end
  local this = {host = host, device = device, kind = kind, available = available, total = total, leases = leases_here}
  local better = better_device(this, asks.mem, asks, order, now)
  return better ~= nil and leave_to(better, id, now)
end

-- Return whether the first job of this queue was left to another device.
local function is_left(priority, user, shape)
  return cache.left_lines and cache.left_lines[queue_key(priority, user, shape)]
end
local function take_head(priority, user, shape, head, rank, place, how)
  local id = first_at(head, priority, user, shape)
  if leave_elsewhere(id, shape) then
    cache_of('left_lines')[queue_key(priority, user, shape)] = true
    return nil
  end
  return take(id, priority, user, shape, fits(shape), how or how_it_came(priority, user, shape, rank, place))
end

-- Claim the first job by position among these shapes of the first user. `heads` has each shape with its position, in
-- order. `from` is the first index to check; `ranked` if these are the user's very first shapes.
-- -> the claim | nil, whether the search is over for this user
local function take_one_of(priority, user, heads, from, ranked, how)
  for i = from, #heads, 2 do
    if fits(heads[i]) and not is_left(priority, user, heads[i]) and not over_a_limit(user, heads[i]) then
      local taken = take_head(priority, user, heads[i], heads[i + 1], 0, ranked and (i - 1) / 2, how)
      if taken or not is_left(priority, user, heads[i]) then return taken, true end
    end
  end
end

-- Search beyond the user's first shapes (`before`). Shapes without room stay in the queue and gather ahead of those
-- that fit. So a claim notes the position of the first shape with room, and the next claim starts there until a new job
-- comes before it (see enqueue in state.lua), or the device has more room. -> the claim | nil, whether all shapes of
-- the user were checked
local NEXT, MOST = 8, 124
local function take_beyond(priority, user, before)
  local function has_room(shape) -- that no reservation blocks; other conditions are not checked
    local asks = asked_by(shape)
    return asks.mem <= available
      and (not r_job or (asks.n == 1 and (asks.mem <= room_beside or ends_before(asks.limit_s, r_start, now))))
  end
  local function first_with_room(heads)
    for i = 1, #heads, 2 do
      if has_room(heads[i]) then return i end
    end
  end
  if first_with_room(before) then return nil, false end

  local shapes, noted = key3('us', priority, user), key3('ub', priority, user)
  local reserved = r_job and string.format('%s.%.0f', r_job, r_start) or '' -- reserved for which job, and until when
  local bytes, beside, reserved_then, from =
    string.match(call('HGET', noted, device) or '', '^(%d+):(%d+):([^:]*):(%(?%-?%d+)$')
  local known = bytes and tonumber(bytes) >= available and tonumber(beside) >= room_beside and reserved_then == reserved
  local most = NEXT
  if not known then from, most = '(' .. before[#before], MOST end
  local heads = call('ZRANGEBYSCORE', shapes, from, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  local i = first_with_room(heads)
  if not i and most == NEXT and #heads == 2 * NEXT then
    most = MOST
    heads = call('ZRANGEBYSCORE', shapes, '(' .. heads[#heads], '+inf', 'WITHSCORES', 'LIMIT', 0, most)
    i = first_with_room(heads)
    known = false
  end
  local all = #heads < 2 * most
  if heads[1] and not (known and i and i <= NEXT) then -- the noted position is near enough
    local place = i and heads[i + 1] or '(' .. heads[#heads]
    call('HSET', noted, device, string.format('%.0f:%.0f:%s:%s', available, room_beside, reserved, place))
  end
  if not i then return nil, all end
  local taken, in_vain = take_one_of(priority, user, heads, i, false, might_run(before[1]) and 'backfill' or nil)
  return taken, in_vain or all
end

-- Claim the user's first job. It mostly is among the user's first few shapes, or none of these has room. `many` is how
-- many shapes of all users are small enough; if few, `search` checks these.
-- -> the claim | nil, whether all shapes of the user were checked
local function take_in_order(priority, user, many)
  local heads = call('ZRANGE', key3('us', priority, user), 0, FEW - 1, 'WITHSCORES')
  local taken, in_vain = take_one_of(priority, user, heads, 1, true)
  if taken or in_vain or #heads < 2 * FEW then return taken, true end
  if many < NEXT then return nil, false end
  return take_beyond(priority, user, heads)
end

-- Claim the user's first job among the shapes that fit.
local function take_fitting(priority, user, fitting, rank)
  local first, its_shape
  for from = 1, #fitting, 1000 do -- Lua passes some thousand arguments at most
    local to = math.min(#fitting, from + 999)
    local heads = call('ZMSCORE', key3('us', priority, user), unpack(fitting, from, to))
    for i = 1, #heads do
      local place = heads[i] and tonumber(heads[i])
      local shape = fitting[from + i - 1]
      if place and (not first or place < first) and not is_left(priority, user, shape) and not over_a_limit(user, shape) then
        first, its_shape = place, shape
      end
    end
  end
  if not first then return nil end
  local taken = take_head(priority, user, its_shape, first, rank)
  if not taken and is_left(priority, user, its_shape) then return take_fitting(priority, user, fitting, rank) end -- at most MOST_LEFT times
  return taken
end

-- Return whether a CPU should check this shape. A CPU takes only jobs that ask for it, mostly none, so the shapes of
-- GPU jobs are skipped by their text, unparsed. (A pool of such a name is a false match and is checked.)
local function worth_judging(shape)
  return string.find(shape, ':cpu', 1, true) or string.find(shape, ':any', 1, true)
end

local ASKED = 2 -- users checked one by one; mostly one of them has a match
local function who_has(priority, shapes)
  local sets, has = {}, {}
  for i = 1, #shapes do sets[i] = key3('su', priority, shapes[i]) end
  for _, user in ipairs(call('SUNION', unpack(sets))) do has[user] = true end
  return has
end

-- Find the shapes that fit, then the least-served user who waits with one of them. For few fitting shapes.
local function search(priority, from)
  local fitting = {}
  for _, shape in ipairs(call('ZRANGEBYSCORE', key2('sh', priority), '-inf', available)) do
    if (not choosy or worth_judging(shape)) and fits(shape) then fitting[#fitting + 1] = shape end
  end
  local has, asked, most = nil, 0, ASKED
  while #fitting > 0 do
    local users = call('ZRANGE', key2('ul', priority), from, from + most - 1)
    for i = 1, #users do
      -- none of the first users: read at once who has any
      if asked == ASKED and not has and #fitting <= 32 then has = who_has(priority, fitting) end
      if not has or has[users[i]] then
        asked = asked + 1
        local taken = take_fitting(priority, users[i], fitting, from + i - 1)
        if taken then return taken end
      end
    end
    if #users < most then return nil end
    from, most = from + most, 64
  end
end

-- Claim from all priorities, starting with the first that has shapes small enough (`so_many`). -> the claim | nil
local function take_in_turn(first_priority, so_many)
  for i = first_priority, #priorities do
    local priority, many = priorities[i], i == first_priority and so_many or small_enough(priorities[i])
    if many > 0 then
      local passed = 0 -- first users without a match
      if not choosy then
        for _, user in ipairs(call('ZRANGE', key2('ul', priority), 0, 0)) do
          local taken, checked_all = take_in_order(priority, user, many)
          if taken then return taken end
          if checked_all then passed = 1 end
        end
      end
      local taken = search(priority, passed)
      if taken then return taken end
    end
  end
end

-- Check in one call for what most sites rarely have. Mostly only the epoch exists; it is counted more often than the
-- rest together. -> {any due, any drained, any reserved} | nil, why the store cannot serve
local function check_site()
  local epoch, rest = P .. 'epoch', 5
  local found = call('EXISTS', epoch, epoch, epoch, epoch, epoch, epoch,
    P .. 'timers', P .. 'drained', P .. 'rsv', P .. 'limits', P .. 'shares')
  if found <= rest then return nil, refusal() end
  local due, drained, reserved, more = false, false, false, found - (rest + 1)
  if more > 0 then
    due, drained, reserved = exist(P .. 'timers', P .. 'drained', P .. 'rsv')
    more = more - (due and 1 or 0) - (drained and 1 or 0) - (reserved and 1 or 0)
  end
  if more == 0 then cache.limits_set, cache.any_shares = false, false end
  return {due, drained, reserved}
end

return function()
  cache = {}
  local site, why = check_site()
  if why then return why end
  local any_due, any_drained, any_reserved = unpack(site)
  local wrong = misfit {'host', 'device', 'worker', 'ms', 'bytes', 'nonce', 'flag'}
  for i = 8, #ARGV, 2 do wrong = wrong or misfit({'id', 'bytes'}, i) end
  if wrong then return wrong end
  local gpus_here
  host, device, worker, lease_ms, external, nonce, gpus_here = unpack(ARGV, 1, 7)
  if gpus_here == '1' then cache.gpus_known = true end -- even before the workers of these GPUs are up
  now = now_ms()
  stamp = string.format('%.0f', now)

  local leases = call('HGETALL', key2('dl', device))
  leases_here = leases
  local again = answer_again(leases)
  if again then return again end
  local first_due = any_due and call('ZRANGE', P .. 'timers', 0, 0, 'WITHSCORES')[2]
  if first_due and tonumber(first_due) <= now then -- a begin time has come, or a dependency has ended
    queue_due(now)
  end
  if any_drained and call('HEXISTS', P .. 'drained', device) == 1 then return {} end
  if pausing(now) or not store_sample(leases) then return {} end
  read_reservation(any_reserved and call('HGET', P .. 'rsv', device), leases)

  -- Mostly no waiting job is small enough.
  priorities = priorities_waited_at()
  local first_priority, so_many = 1, small_enough(priorities[1])
  while so_many == 0 and first_priority < #priorities do
    first_priority = first_priority + 1
    so_many = small_enough(priorities[first_priority])
  end
  if so_many == 0 and not r_job then return {} end

  choosy = kind == 'cpu' and gpus_known()
  cache.kinds, cache.here, cache.only_this = {}, {}, {device}
  local taken = (r_job and take_reserved()) or take_in_turn(first_priority, so_many)
  return taken or (cache.left and {LEAVE_MS}) or {}
end
