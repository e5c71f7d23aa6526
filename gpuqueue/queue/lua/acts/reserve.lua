-- Reserve devices for the jobs that have waited too long and fit nowhere: small jobs must not overtake them for ever.
-- Any process may call this, as often as it likes. A reservation moves only if the job would start sooner by more than
-- MOMENT_MS.
-- ARGV: after_ms  most (reservations on one host)
-- returns JSON, for each reservation: job_id, devices (comma-separated), start_ms ('0': unknown), and if the start is
--   unknown, until_ms: until when the reservation lasts if no run in its way ends before, else '0'
--
-- If the start of the job is unknown, its devices could be empty for days. So they are reserved for as long as the job
-- had waited when the reservation began, or when a run in its way last ended (rk). Then they are dropped, and the runs
-- in the way are recorded as waited for in vain (iw): nothing is reserved behind them again. Each time the wait is
-- longer, so that it outlasts any run in the end; see docs/internals/adr/0012-length-of-a-reservation.md.
local wrong = expect {'ms', 'count'}
if wrong then return wrong end
local after_ms, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local MOST_SHAPES, MOST_CHECKS, MOST_ASKED, MOMENT_MS, AT_LEAST_MS, A_DAY_MS = 64, 32000, 1000, 2000, 60000, 86400000
local now = now_ms()
local rsv = P .. 'rsv'

local hosts, host_of, runs = {}, {}, {} -- hosts: {name, devices, held: number of jobs with reservations on it}
local names = call('SMEMBERS', P .. 'hosts')
table.sort(names)
for _, name in ipairs(names) do
  local host, records = {name = name, devices = {}, held = 0}, call('HGETALL', key2('dev', name))
  for i = 1, #records, 2 do
    local device = planning_record(name, records[i], records[i + 1], now)
    if device then
      host.devices[#host.devices + 1] = device
      host_of[device.name] = host
      for _, run in ipairs(device.runs) do runs[run.id] = run end
    end
  end
  hosts[#hosts + 1] = host
end

local holder, reservations = {}, {} -- device -> job; job -> {device -> text}
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

local function free_for(id, host, only) -- the devices of a host that are not reserved for another job
  local devices = {}
  for _, device in ipairs(host.devices) do
    if (not holder[device.name] or holder[device.name] == id) and (not only or only[device.name]) then
      devices[#devices + 1] = device
    end
  end
  return devices
end

local function best_for(id, user, shape, old_host, awaited)
  local best
  for _, host in ipairs(hosts) do
    if host.held < most or host == old_host then
      local found = plan(free_for(id, host), shape, now, user, awaited)
      if found and (not best or sooner(found.start, best.start) or (found.start == best.start and found.free > best.free)) then
        best = found
        best.host = host
      end
    end
  end
  return best
end

-- Count a reservation against the maximum of its host. One that is older than the wait that a job needs for a
-- reservation does not count: it ends soon, and otherwise jobs that wait for other devices of the host would wait for
-- days as well.
local function counts(id)
  local since = tonumber(call('HGET', job_key(id), F.reserved_since_ms) or '') or now
  return now - since <= math.max(after_ms, AT_LEAST_MS) and 1 or 0
end

-- Read rk. -> since when the reservation waits for the same runs of unknown end, and their ids; nil, {} for none
local function hold_of(id)
  local since, names = string.match(call('HGET', job_key(id), F.reserved_runs) or '', '^(%d+):([%d,]+)$')
  local ids = {}
  for run in string.gmatch(names or '', '%d+') do ids[run] = true end
  return tonumber(since), ids
end

-- Return until when a reservation lasts that has waited in vain since then.
local function patient_until(id, since)
  local waited = math.max(0, since - (waits_since(id, now) or since))
  return since + math.max(after_ms, AT_LEAST_MS, math.min(waited, math.max(A_DAY_MS, math.floor(waited / 4))))
end

local function holds_until(id, found) -- -> until when; 0 if the start of the job is known
  if found.start ~= 0 then
    call('HDEL', job_key(id), F.reserved_runs)
    return 0
  end
  local names = {}
  for _, device in ipairs(found.devices) do
    for run in string.gmatch(device.blockers, '%d+') do
      if runs[run].ends == 0 then names[#names + 1] = run end
    end
  end
  call('HSETNX', job_key(id), F.reserved_runs, string.format('%.0f:', now) .. table.concat(names, ','))
  return patient_until(id, hold_of(id) or now)
end

-- Return whether another waiting job would take what is free on one of these devices, as far as the shapes show.
local function is_missed(host, found, own_shape)
  local free = {}
  for _, device in ipairs(host.devices) do free[device.name] = device end
  for _, each in ipairs(found.devices) do
    local device = free[each.name]
    for _, priority in ipairs(#device.runs < device.slots and not device.alone and PRIORITIES or {}) do
      for _, shape in ipairs(call('ZRANGEBYSCORE', key2('sh', priority), '-inf', device.free, 'LIMIT', 0, MOST_ASKED)) do
        local mem, _, _, pool, wanted_kind, more = parse_shape(shape)
        if mem and shape ~= own_shape and belongs(pool, wanted_kind, constraints(more), device.host, device.name, device.pool, device.kind) then
          return true
        end
      end
    end
  end
  return false
end

-- Return whether the reservation lasted long enough, no run in its way has ended meanwhile, and other jobs would use
-- the devices.
local function is_in_vain(id, shape, found, since, waits_for)
  if found.start ~= 0 or not since then return false end
  for run in pairs(waits_for) do
    if not runs[run] then
      call('HDEL', job_key(id), F.reserved_runs) -- starts again when the job is reserved for again
      return false
    end
  end
  return now >= patient_until(id, since) and is_missed(found.host, found, shape)
end

-- Record the runs that outlasted a wait. A job on several devices waited for every run of its host that could have made
-- room.
local function note_lasting(host, since, waits_for, n)
  for _, device in ipairs(host.devices) do
    for _, run in ipairs(device.runs) do
      if waits_for[run.id] or (n > 1 and run.ends == 0 and run.since <= since) then
        run.lasts = true
        -- a damaged entry has no claim time
        if run.claimed ~= '' then call('HSET', job_key(run.id), F.in_vain_ms, run.claimed) end
      end
    end
  end
end

local out, changed = {}, false
local function reserve(id, shape, found)
  local chosen, mem = {}, whole((parse_shape(shape)))
  for _, device in ipairs(found.devices) do
    call('HSET', rsv, device.name, table.concat({id, device.all and whole(device.all) or mem, whole(found.start), device.blockers}, ':'))
    holder[device.name] = id
    chosen[#chosen + 1] = device.name
  end
  call('HSET', job_key(id), F.reserved, table.concat(chosen, ','))
  call('HSETNX', job_key(id), F.reserved_since_ms, whole(now))
  found.host.held = found.host.held + counts(id)
  local ends = whole(holds_until(id, found))
  out[#out + 1] = {job_id = id, devices = table.concat(chosen, ','), start_ms = whole(found.start), until_ms = ends}
end

local function forget(id, devices)
  for device in pairs(devices) do
    call('HDEL', rsv, device)
    holder[device] = nil
  end
  call('HDEL', job_key(id), F.reserved, F.reserved_since_ms, F.reserved_runs, F.by_preemption)
  changed = true
end

local moment = now - after_ms
local last_waiting -- a bound on the ids of jobs that have waited this long; read once
local function heads_of(priority, user)
  last_waiting = last_waiting or last_id_before(moment)
  return call('ZRANGE', key3('us', priority, user), '-inf', whole(last_waiting), 'BYSCORE', 'WITHSCORES')
end

-- Find where a job could have its devices first, ignoring its limits. Of several devices, some may give more than the
-- limits allow: each is charged as the one that gives the least.
local plans, planned = {}, 0 -- of jobs without reservations: many are alike; one tick plans at most MOST_SHAPES
local function plan_for(entry, most_bytes, awaited)
  local like = entry.shape .. ' ' .. whole(most_bytes)
  local is_new = entry.since == now and not next(awaited)
  if is_new and (plans[like] ~= nil or planned == MOST_SHAPES) then return plans[like] end
  local _, _, n = parse_shape(entry.shape)
  local best
  for _, host in ipairs(hosts) do
    local devices = {}
    for _, device in ipairs(host.devices) do
      if n > 1 or device.capacity <= most_bytes then devices[#devices + 1] = device end
    end
    local found = plan(devices, entry.shape, now, nil, awaited)
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

local ids = {}
for id in pairs(reservations) do ids[#ids + 1] = id end
table.sort(ids, function(a, b) return tonumber(a) < tonumber(b) end)
for _, id in ipairs(ids) do -- existing reservations count first
  local host = host_of[next(reservations[id])]
  if host then host.held = host.held + counts(id) end
end
for _, id in ipairs(ids) do
  local job, devices = read_job(id), reservations[id]
  local host = host_of[next(devices)]
  if host then host.held = host.held - counts(id) end -- added again below
  local here, best
  local since, waits_for = hold_of(id)
  local is_made = call('HEXISTS', job_key(id), F.by_preemption) == 1 -- runs were preempted for it: see preempt.lua
  if (most > 0 or is_made) and job.state == 'queued' and queueable(job) then
    here = host and plan(free_for(id, host, devices), job.shape, now, job.user, waits_for)
    if here then here.host = host end
    best = best_for(id, job.user, job.shape, host, waits_for)
  end
  local is_sooner = here and best and sooner(best.start == 0 and 0 or best.start + MOMENT_MS, here.start)
  local is_coming = is_made and here and here.start ~= 0 -- a preempted run that does end must not end in vain
  if here and best and (is_coming or not is_sooner) then best = here end
  if here and best == here and is_in_vain(id, job.shape, here, since, waits_for) then
    local _, _, n = parse_shape(job.shape)
    note_lasting(host, since, waits_for, n)
    best = nil
  end
  if best ~= here or not best then forget(id, devices) end
  if best then reserve(id, job.shape, best) end
end

-- Return whether the limits of a user leave no room for a run of this shape, whichever device it gets.
local function beyond_everywhere(user, shape) return limit_in_the_way(user, shape, least_kind(shape)) ~= nil end

local served = {} -- all devices that workers serve now
for _, host in ipairs(hosts) do
  for _, device in ipairs(host.devices) do served[#served + 1] = device end
end
local function fill() -- in the order in which jobs are claimed
  local checked, tried, checks = {}, 0, 0
  for _, priority in ipairs(PRIORITIES) do
    for _, user in ipairs(call('ZRANGE', key2('ul', priority), 0, -1)) do
      local heads = heads_of(priority, user)
      for i = 1, #heads, 2 do
        local shape = heads[i]
        local id = first_at(heads[i + 1], priority, user, shape)
        local like = limits_set() and user .. ' ' .. shape or shape -- jobs that are alike here have the same room
        if not reservations[id] and not checked[like] and parse_shape(shape) and not beyond_everywhere(user, shape) then
          if (waits_since(id, now) or now + 1) <= moment then
            checked[like], checks = true, checks + #served
            if could_be_hosted(served, shape) then -- else it costs no try
              tried = tried + 1
              local found = best_for(id, user, shape, nil, {})
              if found and found.start ~= now then
                reserve(id, shape, found)
                changed = true
              end
            end
            if tried == MOST_SHAPES or checks > MOST_CHECKS then return end
          end
        end
      end
    end
  end
end
local room = false
for _, host in ipairs(hosts) do room = room or host.held < most end
if room then fill() end
if changed then wake('room') end
return cjson.encode(out)
