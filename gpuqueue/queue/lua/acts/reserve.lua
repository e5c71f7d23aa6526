-- Reserve devices for the jobs that have waited too long and fit nowhere: small jobs must not overtake them for ever.
-- Any process may call this, as often as it likes. The rules, for users in docs/explanation/order.md, with their
-- reasons in decision 19:
--
-- 1. Turn: the job that has waited longest, of the highest priority. A job whose reservation was dropped counts as one
--    that began to wait then.
-- 2. End: a reservation lasts as long as the job had waited. On more than a quarter of all devices (MOST_PART) it lasts for
--    a shorter time, so that the product is the same: on all devices for a quarter of the wait.
-- 3. Prospect: only if the job is likely to start within half of that (prospects.lua).
-- 4. Cost: devices are reserved for one job at a time, or for several of different users on an eighth of all devices
--    (PART). Nothing new is reserved until what was idle is within the budget on average (reserved_idle.lua).
--
-- ARGV: after_ms  most (reservations on one host)  the budget: the part of all devices that may be idle (0: any)
-- returns JSON: reservations: for each, job_id, devices (comma-separated), start_ms (latest start; '0': unknown), and
--   until_ms: when the reservation ends ('0': with the preempted runs); again_ms: when a call may reserve more although
--   nothing has changed, else '0'
local wrong = expect {'ms', 'count', 'rate'}
if wrong then return wrong end
local after_ms, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local MOST_SHAPES, MOST_CHECKS, AT_LEAST_MS, A_DAY_MS = 64, 32000, 60000, 86400000
local PART, MOST_PART = 1 / 8, 1 / 4 -- of the devices, on average and as long as a job has waited; see decision 19
local now = now_ms()
local rsv = P .. 'rsv'

local hosts, host_of, runs, served = {}, {}, {}, {} -- hosts: {name, devices, held: number of jobs with reservations on it}
local names = call('SMEMBERS', P .. 'hosts')
table.sort(names)
for _, name in ipairs(names) do
  local host, records = {name = name, devices = {}, held = 0}, call('HGETALL', key2('dev', name))
  for i = 1, #records, 2 do
    local device = planning_record(name, records[i], records[i + 1], now)
    if device then
      host.devices[#host.devices + 1], served[#served + 1] = device, device
      host_of[device.name] = host
      for _, run in ipairs(device.runs) do runs[run.id] = run end
    end
  end
  hosts[#hosts + 1] = host
end

local holder, reservations, waited_for = {}, {}, {} -- device -> job; job -> {device -> text}; user -> true
local texts = call('HGETALL', rsv)
for i = 1, #texts, 2 do
  local id = parse_reservation(texts[i + 1])
  if id then
    holder[texts[i]] = id
    reservations[id] = reservations[id] or {}
    reservations[id][texts[i]] = texts[i + 1]
  else
    call('HDEL', rsv, texts[i])
  end
end

-- Return for how long room may be reserved for a job that has waited so long: for as long, and at most a day, or a quarter
-- of the wait. On more than a part of the devices the time is shorter, so that the product is the same.
local function patience_ms(waited, count)
  local most_ms = waited * math.min(1, count and #served * MOST_PART / count or 1)
  return math.max(after_ms, AT_LEAST_MS, math.floor(math.min(most_ms, math.max(A_DAY_MS, waited / 4))))
end

-- Return until when a reservation (on so many devices; nil: of room) lasts that was made at that time.
local function patient_until(id, since, count)
  return since + patience_ms(math.max(0, since - (waits_since(id, now) or since)), count)
end

local moment = now - after_ms
local last_waiting -- a bound on the ids of jobs that have waited this long; read once
local function last_that_waits()
  last_waiting = last_waiting or last_id_before(moment)
  return last_waiting
end
local function heads_of(priority, user)
  return call('ZRANGE', key3('us', priority, user), '-inf', whole(last_that_waits()), 'BYSCORE', 'WITHSCORES')
end

-- ---- room under limits ----------------------------------------------------------------------------------------------

-- Return since when devices are reserved for a job, and the runs in its way there: nil, {} for none.
local function hold_of(id)
  local ids = {}
  for _, text in pairs(reservations[id] or {}) do
    local _, _, _, blockers = parse_reservation(text)
    for run in string.gmatch(blockers, '%d+') do ids[run] = true end
  end
  return tonumber(call('HGET', job_key(id), F.reserved_since_ms) or ''), ids
end

-- Find where a job could have its devices first, ignoring its limits. Of several devices, some may give more than the
-- limits allow: each is charged as the one that gives the least.
local plans, planned = {}, 0 -- of jobs without reservations: many are alike; one tick plans at most MOST_SHAPES
local function plan_for(entry, most_bytes, awaited)
  local like = alike(entry.user, entry.shape) .. ' ' .. whole(most_bytes)
  local is_new = entry.since == now and not next(awaited)
  if is_new and (plans[like] ~= nil or planned == MOST_SHAPES) then return plans[like] end
  local _, _, n = parse_shape(entry.shape)
  local best
  for _, host in ipairs(hosts) do
    local devices = {}
    for _, device in ipairs(host.devices) do
      if n > 1 or device.capacity <= most_bytes then devices[#devices + 1] = device end
    end
    local found = plan(devices, entry.shape, now, entry.user, awaited, true)
    if found and (not best or sooner(found.start, best.start)) then best = found end
  end
  if is_new then plans[like], planned = best or false, planned + 1 end
  return best
end

-- Find devices for a job with reserved room (limit_reservation.lua). A run that came after the reservation counts as
-- one without a time limit: such limits are mostly far too long, and every new run would drop the reservation.
local function devices_of(entry, most_bytes, awaited)
  local best = plan_for(entry, most_bytes, awaited)
  local start, unknown = now, {}
  for _, device in ipairs(best and best.devices or {}) do
    for id in string.gmatch(device.blockers, '%d+') do
      local run = runs[id]
      if run.ends == 0 or run.since > entry.since then unknown[id] = run else start = math.max(start, run.ends) end
    end
  end
  if not best then return nil end
  return start <= now and next(unknown) and 0 or start, best.start, unknown
end

if most > 0 and limits_set() then -- first: no device is reserved for a job at its limit
  local function has_waited(id) return (waits_since(id, now) or now + 1) <= moment end
  reserve_rooms(now, {heads_of = heads_of, has_waited = has_waited, patient_until = patient_until, devices_of = devices_of,
    hold_of = hold_of})
elseif limits_set() then
  call('DEL', P .. 'lk')
end

-- ---- devices -------------------------------------------------------------------------------------------------------

charge_idle(tonumber(ARGV[3]), #served, now)
foresee(served, now) -- from here on, `ends` of a run is when it is likely to end
local function latest_of(found) return latest_start(found, runs, now) end

local function free_for(id, host, only) -- the devices of a host that are not reserved for another job
  local devices = {}
  for _, device in ipairs(host.devices) do
    if (not holder[device.name] or holder[device.name] == id) and (not only or only[device.name]) then
      devices[#devices + 1] = device
    end
  end
  return devices
end

local function best_for(id, user, shape)
  local best
  for _, host in ipairs(hosts) do
    if host.held < most then
      local found = plan(free_for(id, host), shape, now, user)
      if found and (not best or found.start < best.start or (found.start == best.start and found.free > best.free)) then
        best = found
        best.host = host
      end
    end
  end
  return best
end

-- ---- reservations ---------------------------------------------------------------------------------------------------

local out, changed, held = {}, false, 0 -- held: devices reserved by these rules, not by preemption
local needs = {} -- device -> bytes that are reserved there
local function reserve(id, user, shape, found)
  waited_for[user] = true
  local chosen, mem, latest = {}, parse_shape(shape), latest_of(found)
  call('HSETNX', job_key(id), F.reserved_since_ms, whole(now))
  local since, by_preemption = unpack(call('HMGET', job_key(id), F.reserved_since_ms, F.by_preemption))
  since = tonumber(since) or now
  local ends = by_preemption and 0 or patient_until(id, since, #found.devices)
  local likely = math.min(found.start, math.floor((since + ends) / 2))
  if likely <= now + GONE_MS then likely = 0 end
  for _, device in ipairs(found.devices) do
    local need = device.all or mem
    call('HSET', rsv, device.name, table.concat({id, whole(need), whole(latest), device.blockers, whole(likely)}, ':'))
    holder[device.name], needs[device.name] = id, need
    chosen[#chosen + 1] = device.name
  end
  call('HSET', job_key(id), F.reserved, table.concat(chosen, ','))
  found.host.held = found.host.held + 1
  if not by_preemption then held = held + #chosen end
  out[#out + 1] = {job_id = id, devices = table.concat(chosen, ','), start_ms = whole(latest), until_ms = whole(ends)}
end

local function forget(id, devices)
  for device in pairs(devices) do
    call('HDEL', rsv, device)
    holder[device] = nil
  end
  unreserve(id)
  changed = true
end

local average = #served * PART -- devices reserved for several jobs

local ids = {}
for id in pairs(reservations) do ids[#ids + 1] = id end
table.sort(ids, function(a, b) return tonumber(a) < tonumber(b) end)
for _, id in ipairs(ids) do -- a reservation stays where it is: with room elsewhere, the job is claimed there
  local job, devices = read_job(id), reservations[id]
  local host, here = host_of[next(devices)], nil
  local since, made = unpack(call('HMGET', job_key(id), F.reserved_since_ms, F.by_preemption)) -- made: see preempt.lua
  if host and (most > 0 or made) and job.state == 'queued' and queueable(job) then
    here = plan(free_for(id, host, devices), job.shape, now, job.user)
  end
  if here and made and latest_of(here) == 0 then
    here = nil -- a preempted run hangs
  elseif here and not made and here.start > now and now >= patient_until(id, tonumber(since) or now, #here.devices) then
    here = nil
    call('HSET', job_key(id), F.dropped_ms, whole(now))
  end
  if here then
    here.host = host
    reserve(id, job.user, job.shape, here)
  else
    forget(id, devices)
    reservations[id] = nil
  end
end

-- ---- new reservations -----------------------------------------------------------------------------------------------

local again -- when a call may reserve more
local function check_again(at) again = math.min(again or at, at) end

local function is_affordable(found)
  local from = tonumber(call('HGET', P .. 'meta', 'reserve_at') or '') or 0
  if now < from then check_again(from) end
  return now >= from and (held == 0 or held + #found.devices <= math.max(most, average))
end

-- Return whether the limits of a user leave no room for a run of this shape, whichever device it gets.
local function beyond_everywhere(user, shape) return limit_in_the_way(user, shape, least_kind(shape)) ~= nil end

-- Reserve devices for a job if it has good prospects. -> whether the others may have their turn
local function consider(job)
  if waited_for[job.user] then return true end
  local found = best_for(job.id, job.user, job.shape)
  if not found or found.start == now then return true end
  local is_likely, next_at = has_prospects(found.start, patience_ms(judged_at(now) - job.since, #found.devices), now)
  if not is_likely then
    check_again(next_at)
    return true
  end
  if not is_affordable(found) then return false end
  reserve(job.id, job.user, job.shape, found)
  changed = true
  return true
end

-- Reserve for the jobs that have waited longest; after a dropped reservation a job is as one that came then.
local function fill_at(priority, limits)
  local jobs = {}
  oldest_first(priority, last_that_waits(), function(id, user, shape)
    if reservations[id] or waited_for[user] or not parse_shape(shape) then return false end
    local like = alike(user, shape) -- jobs that are alike here have the same room
    local since = not limits.checked[like] and not beyond_everywhere(user, shape) and waits_since(id, now)
    if since and since <= moment then
      limits.checked[like], limits.checks = true, limits.checks + #served
      if could_be_hosted(served, shape, user) then -- else it costs no try
        local dropped = tonumber(call('HGET', job_key(id), F.dropped_ms) or '') or 0
        limits.tried = limits.tried + 1
        jobs[#jobs + 1] = {id = id, user = user, shape = shape, since = since, turn = math.max(since, dropped)}
      end
    end
    return limits.tried == MOST_SHAPES or limits.checks > MOST_CHECKS
  end)
  table.sort(jobs, function(a, b)
    if a.turn ~= b.turn then return a.turn < b.turn end
    return tonumber(a.id) < tonumber(b.id)
  end)
  for _, job in ipairs(jobs) do
    if not consider(job) then return false end
  end
  return limits.tried < MOST_SHAPES and limits.checks <= MOST_CHECKS
end

local function fill()
  local limits = {checked = {}, checks = 0, tried = 0}
  for _, priority in ipairs(PRIORITIES) do
    if not fill_at(priority, limits) then return end
  end
end
local room = false
for _, host in ipairs(hosts) do room = room or host.held < most end
if room then fill() end
note_idle(served, needs, now)
if changed then wake('room') end
return cjson.encode({reservations = out, again_ms = whole(again or 0)})
