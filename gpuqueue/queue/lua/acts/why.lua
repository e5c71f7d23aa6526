-- Explain why a job does not run, from the same figures and by the same rules as a claim. Changes nothing.
-- ARGV: id
-- returns '' if unknown | JSON with the fields of gpuqueue.queue.explanation.Explanation. Ids, bytes and times are
--   strings, because cjson rounds large numbers. Unknown values and empty lists are left out.
local wrong = expect {'id'}
if wrong then return wrong end
local id = ARGV[1]
local job = read_job(id)
if not job.state then return '' end
job.id = id
if job.state ~= 'queued' and job.state ~= 'held' or not queueable(job) then
  local by, deadline, times = unpack(call('HMGET', job_key(id), F.preempted_by, F.preempt_until_ms, F.preemptions))
  return cjson.encode({state = job.state, priority = job.priority or '1',
    preemption = {by = by and by ~= '0' and by or nil, deadline_ms = deadline or nil, times = to_count(times)}})
end
local now = now_ms()
local asks = asks_of(job.shape, job.user)

local function time(ms) return ms and ms > 0 and whole(ms) or nil end -- 0: unknown
local function list(items) return #items > 0 and items or nil end -- cjson writes an empty table as {}

local function describe_run(run)
  local st, by, times, priority, deadline, marks = unpack(call('HMGET', job_key(run.id), F.state, F.preempted_by,
    F.preemptions, F.priority, F.preempt_until_ms, F.marks))
  if counts_as_low(marks) then priority = '0' end
  return {job_id = run.id, held_bytes = whole(run.bytes), ends_ms = time(run.ends), preemptions = to_count(times),
    going = is_leaving(st, by, deadline, now), priority = string.match(priority or '', '^[0-3]$')}
end

local excluded_hosts = asks.want.excluded and reasons_of(id) or {}
local function describe_device(device, obstacle, holder)
  local runs = {}
  for i, run in ipairs(device.runs) do runs[i] = describe_run(run) end
  return {device = device.name, host = device.host, obstacle = obstacle, available_bytes = whole(device.available),
    capacity_bytes = whole(device.capacity), total_bytes = whole(device.total), runs = list(runs), reserved_for = holder,
    end_ms = time(end_for(device.ends, device.calendar, job.user)),
    by_preemption = holder and call('HGET', job_key(holder), F.by_preemption) == '1',
    cannot_start = obstacle == 'excluded' and excluded_hosts[device.host] or nil}
end

-- Return whether the job may start at this moment (0: unknown) on a device that is reserved for another job, once these
-- runs have ended: beside that job, or before it.
local function passes(other, blockers, at)
  local is_beside = fits_beside(other.device, asks, other.device.blockers .. ',' .. blockers)
  other.is_later = asks.n == 1 and at > 0 and ends_before(asks, other.device.start, other.device.likely, at)
  return other.is_later or is_beside
end

-- Find where the job has room first, ignoring reservations. Only called if there is no other forecast. Return nil if the
-- job fits nowhere, or if only reservations block it: the devices' obstacles show that.
local function plan_behind(records)
  local found, is_beyond_limits = plan(records, job.shape, now, job.user), false
  if not found then found, is_beyond_limits = plan(records, job.shape, now, job.user, nil, true), true end
  if not found then return nil end
  found.beyond = is_beyond_limits
  local waits, is_reserved, others = false, false, {}
  for _, device in ipairs(found.devices) do
    waits = waits or device.blockers ~= ''
    for _, each in ipairs(records) do
      if each.name == device.name and each.other then
        others[#others + 1] = {it = each.other, blockers = device.blockers}
        is_reserved = is_reserved or each.other.is_obstacle
      end
    end
  end
  if is_reserved and not waits then return nil end
  local own_start = found.start
  for _, other in ipairs(others) do
    local its = other.it.device.start
    if not passes(other.it, other.blockers, own_start) and waits and found.start ~= 0 and (its == 0 or its >= found.start) then
      found.start, found.behind = its, other.it.id -- the job that holds the reservation takes the room when it starts
    end
  end
  return found
end

local function sooner_of(best, found)
  if found and (not best or sooner(found.start, best.start)) then return found end
  return best
end

-- Judge all devices, and plan where the job starts first: within its limits (`best`), without them, or behind jobs with
-- reservations.
local devices, served = {}, {}
local drawn, lasting = {}, {} -- device -> planning record; run -> whether a reservation for its end has expired
local best, best_beyond, best_behind
for _, on_host in ipairs(read_site(now)) do
  local obstacles, own, all = obstacles_on(on_host.devices, job, asks, now), {}, {}
  for i, device in ipairs(on_host.devices) do
    local holder = holder_of(device, id)
    devices[#devices + 1] = describe_device(device, obstacles[i], holder)
    local record = planning_record(device.host, device.name, device.record, now)
    if record then
      all[#all + 1], drawn[device.name] = record, record
      for _, run in ipairs(record.runs) do lasting[run.id] = run.lasts end
      record.is_own = holder == id
      if holder and holder ~= id then record.other = {id = holder, is_obstacle = obstacles[i] == 'reserved', device = device}
      else own[#own + 1] = record end
    end
  end
  served[on_host.host] = all
  local found = plan(own, job.shape, now, job.user)
  local beyond = not found and plan(own, job.shape, now, job.user, nil, true)
  best, best_beyond = sooner_of(best, found), sooner_of(best_beyond, beyond)
  best_behind = sooner_of(best_behind, not found and not beyond and plan_behind(all))
end
if best_beyond then best_beyond.beyond = true end
best = best or best_beyond or best_behind

local charged -- what an exclusive job is charged on each device of the plan
for _, device in ipairs(best and asks.want.alone and best.devices or {}) do
  charged = math.min(charged or math.huge, math.max(device.gives, 0))
end

-- The limits that block the job everywhere; if there are none, those of the first device where a limit blocks it.
local limits = limits_in_the_way(job.user, job.shape, least_kind(job.shape))
if #limits == 0 and job.limited_on then limits = limits_in_the_way(job.user, job.shape, unpack(job.limited_on, 1, 2)) end
if #limits == 0 and best and best.beyond then -- the device is occupied now; an exclusive job on it would exceed a limit
  limits = limits_in_the_way(job.user, job.shape, best.devices[1].kind, charged)
  if limits[1] and limits[1].asked > limits[1].most then best, limits = nil, {} end -- the job can never have such a device
end

local under = #limits > 0 and room_under_limits(limits, job.user, job.shape, best and best.start or now, now)
local waits_for_limits = under and best and best.beyond

local reply, ahead = jobs_ahead(job)

-- A job with a reservation on a planned device goes first, unless this job ends before that reservation starts.
local moved = {}
for _, later in ipairs(waits_for_limits and under.gone_before or {}) do goes_before(ahead, moved, later, false) end
for _, device in ipairs(best and best.devices or {}) do
  local other = drawn[device.name].other
  if other then goes_before(ahead, moved, other.id, not other.is_later) end
end

-- Return which of the runs that a device is waited for have to end: without the others there is room just as soon.
-- Room is counted in the order of their ends, so a small run that ends first may be of no use once a large one ends.
local function needed_on(record, blockers)
  local free, places, needed = record.free, record.slots - #record.runs, {}
  for _, run in ipairs(record.runs) do
    if within(blockers, run.id) then free, places, needed[run.id] = free + run.bytes, places + 1, true end
  end
  for _, run in ipairs((asks.want.alone or record.alone) and {} or record.runs) do
    if needed[run.id] and free - run.bytes >= asks.mem and places > 1 then
      free, places, needed[run.id] = free - run.bytes, places - 1, nil
    end
  end
  return needed
end

local function describe_start()
  local names, blockers, in_vain, ended, records = {}, {}, {}, {}, {}
  for i, device in ipairs(best.devices) do
    names[i], records[i] = device.name, drawn[device.name]
    records[i].blockers = device.blockers
    local needed = needed_on(records[i], device.blockers)
    for run in string.gmatch(device.blockers, '%d+') do
      ended[run] = true
      if needed[run] then blockers[#blockers + 1] = run end
      if lasting[run] then in_vain[#in_vain + 1] = run end
    end
  end
  for _, run in ipairs(waits_for_limits and under.ids or {}) do ended[run] = true end
  local rivals, at = count_rivals(ahead, job, asks, records, ended, charged, served), best.start
  if waits_for_limits then at = at ~= 0 and under.at ~= 0 and math.max(at, under.at) or 0 end
  return {free_ms = time(best.start), room_ms = time(at), at_ms = rivals == 0 and time(at) or nil, devices = names,
    blockers = list(blockers), in_vain = list(in_vain), rivals = rivals, limited = waits_for_limits and true or false,
    behind = best.behind}
end

reply.state, reply.priority, reply.devices = job.state, job.priority, list(devices)
reply.waits_since_ms = time(waits_since(id, now))
local reserve_from = tonumber(call('HGET', P .. 'meta', 'reserve_at') or '') or 0 -- see reserve.lua, rule 4
reply.reserve_from_ms = reserve_from > now and time(reserve_from) or nil
if best and not (job.state == 'queued' and (job.reason or '') ~= '') then reply.start = describe_start() end
if under then reply.room = {at_ms = time(under.at), reserved_for = under.reserved_for, runs = list(under.ids)} end
for i, each in ipairs(limits) do
  limits[i] = {whose = each.whose, measure = each.measure, used = whole(each.used), most = whole(each.most),
    asked = whole(each.asked), reserved_for = each.reserved_for, runs = list(each.ids)}
end
reply.limits = list(limits)
return cjson.encode(reply)
