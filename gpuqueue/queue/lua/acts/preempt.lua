-- Preempt runs of lower priorities for jobs of some priorities. Any process may call this, as often as it likes.
-- For each job that fits nowhere, the script picks victims on each device, newest first, until the job fits, then
-- leaves out each victim that turns out not to be needed. It takes the devices on which the least work (bytes on all
-- devices, times run time) is lost. The room is reserved for the job. Each victim is notified through ctl and through
-- its worker's next heartbeat. Devices reserved for a waiting job of a lower priority may be taken as well; that job
-- then loses its whole reservation.
-- ARGV: after_ms (minimum run time before preemption)  grace_ms  most (preemptions of one job, at most), then for each
--   priority that may preempt: priority  the priorities that it may preempt, as digits
-- returns for each preempted run: its job  the job that it is preempted for
local wrong = misfit {'ms', 'ms', 'count'}
for i = 4, #ARGV, 2 do wrong = wrong or misfit({'priority', 'priorities'}, i) end
if wrong then return wrong end
local after_ms, grace_ms, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now, out, MOST_SHAPES, MOST_CHECKS = now_ms(), {}, 16, 32000
if pausing(now) then return out end
local deadline = whole(now + grace_ms)
local rsv = P .. 'rsv'

local hosts, names = {}, call('SMEMBERS', P .. 'hosts')
table.sort(names)
for _, name in ipairs(names) do
  local devices, records = {}, call('HGETALL', key2('dev', name))
  for i = 1, #records, 2 do devices[#devices + 1] = planning_record(name, records[i], records[i + 1], now) end
  hosts[#hosts + 1] = devices
end
local holder, texts = {}, call('HGETALL', rsv) -- device -> job
for i = 1, #texts, 2 do holder[texts[i]] = parse_reservation(texts[i + 1]) end
local given_up = false -- whether a reservation was dropped

local function give_up(id) -- drops all reservations of a job
  unreserve(id)
  for device, by in pairs(holder) do
    if by == id then holder[device] = nil end
  end
end

local function is_others(device, id) return holder[device.name] ~= nil and holder[device.name] ~= id end
local function may_take(device, id, lower)
  if not is_others(device, id) then return true end
  local priority = call('HGET', job_key(holder[device.name]), F.priority)
  return priority and #priority == 1 and string.find(lower, priority, 1, true) ~= nil
end

local known = {} -- run -> priority (priority), going (it ends in any case), may (it may be preempted), began, work
local function run_of(id)
  if known[id] then return known[id] end
  local j = call('HMGET', job_key(id), F.state, F.priority, F.requeue, F.started_ms, F.preemptions, F.preempted_by,
    F.mem_bytes, F.devices, F.shape, F.preempt_until_ms, F.marks)
  local began, mem, _, gang = tonumber(j[4] or ''), tonumber(j[7] or ''), string.gsub(j[8] or '', ',', '')
  if mem and wants_alone(j[9] or '') then mem = allocated_to(id, j[8] or '') or mem end -- whole devices, whatever it asked for
  local priority = counts_as_low(j[11]) and '0' or j[2]
  local run = {priority = priority, going = is_leaving(j[1], j[6], j[10], now), began = began}
  run.may = j[1] == 'running' and not j[6] and j[3] == '1' and began and mem and now - began >= after_ms
    and j[2] and to_count(j[5]) < most
  if run.may then run.work = mem * (gang + 1) * (now - began) end
  known[id] = run
  return run
end

local function room(device, without) -- what is free once these runs, and those that end in any case, are gone
  local free, places = device.free, device.slots - #device.runs
  for _, run in ipairs(device.runs) do
    if without[run.id] or run_of(run.id).going then free, places = free + run.bytes, places + 1 end
  end
  return free, places
end

local function fits(device, mem, without, want)
  for _, run in ipairs((want.alone or device.alone) and device.runs or {}) do
    if not (without[run.id] or run_of(run.id).going) then return false end
  end
  local free, places = room(device, without)
  return free >= mem and places >= 1
end

-- Choose the runs to preempt on this device. -> their ids, newest first, and the work that is lost; nil if these are
-- not enough.
local function victims_on(device, mem, lower, want)
  local may, without, ids, work = {}, {}, {}, 0
  for _, run in ipairs(device.runs) do
    local its = run_of(run.id)
    if its.may and string.find(lower, its.priority, 1, true) then may[#may + 1] = run.id end
  end
  table.sort(may, function(a, b)
    local x, y = run_of(a).began, run_of(b).began
    if x ~= y then return x > y end
    return tonumber(a) > tonumber(b)
  end)
  for _, id in ipairs(may) do
    if fits(device, mem, without, want) then break end
    without[id], ids[#ids + 1], work = true, id, work + run_of(id).work
  end
  if fits(device, mem, without, want) then return ids, work end
end

-- Compare by lost work, then by devices reserved for other jobs.
local function costs_less(a, b)
  if a.work ~= b.work then return a.work < b.work end
  return a.reserved < b.reserved
end

-- Find the devices of one host that cost least: {devices, victims, work, reserved: how many of them are reserved for
-- others, alone}; nil if there are none.
local function cheapest(devices, id, user, shape, lower)
  local asks, by_kind, best = asks_of(shape, user), {}, nil
  local mem, n, want = asks.mem, asks.n, asks.want
  for _, device in ipairs(devices) do
    local ends = end_for(device.ends, device.calendar, user)
    if could_host(device, asks) and over_in_time(asks, now + grace_ms, ends) and may_take(device, id, lower) then
      local ids, work = victims_on(device, mem, lower, want)
      if ids then
        local row = by_kind[device.kind] or {}
        by_kind[device.kind] = row
        row[#row + 1] = {device = device, ids = ids, work = work, reserved = is_others(device, id) and 1 or 0,
          gives = device.capacity, kind = device.kind}
      end
    end
  end
  for _, row in pairs(by_kind) do
    table.sort(row, function(a, b)
      if a.work ~= b.work or a.reserved ~= b.reserved then return costs_less(a, b) end
      return a.device.name < b.device.name
    end)
    local chosen = allowed_by_limits(row, n, user, shape)
    if chosen then
      local found = {devices = {}, victims = {}, work = 0, reserved = 0, alone = want.alone}
      local without = {}
      for i = 1, n do
        found.devices[i], found.reserved = chosen[i].device, found.reserved + chosen[i].reserved
        for _, each in ipairs(chosen[i].ids) do
          if not without[each] then without[each], found.victims[#found.victims + 1] = true, each end
        end
      end
      for i = #found.victims, 1, -1 do -- leave out each victim that the job fits without
        without[found.victims[i]] = nil
        local all = true
        for _, device in ipairs(found.devices) do all = all and fits(device, mem, without, want) end
        if all then table.remove(found.victims, i) else without[found.victims[i]] = true end
      end
      for _, each in ipairs(found.victims) do found.work = found.work + run_of(each).work end
      if not best or costs_less(found, best) then best = found end
    end
  end
  return best
end

local function ask_to_go(id, by)
  preempt_run(id, read_job(id), by, now, grace_ms)
  known[id].going, known[id].may = true, false
  out[#out + 1], out[#out + 2] = id, by
end

local function preempt_runs(id, shape, found)
  for _, victim in ipairs(found.victims) do ask_to_go(victim, id) end
  give_up(id)
  for _, device in ipairs(found.devices) do
    if holder[device.name] then -- reserved for a job of lower priority
      give_up(holder[device.name])
      given_up = true
    end
  end
  local chosen = {}
  for _, device in ipairs(found.devices) do
    local blockers = {}
    for _, run in ipairs(device.runs) do
      if run_of(run.id).going then blockers[#blockers + 1] = run.id end
    end
    -- An exclusive job gets all of the device reserved, so that no other job starts there meanwhile.
    local need = whole(found.alone and device.total or (parse_shape(shape)))
    call('HSET', rsv, device.name, table.concat({id, need, deadline, table.concat(blockers, ',')}, ':'))
    holder[device.name] = id
    chosen[#chosen + 1] = device.name
  end
  call('HSET', job_key(id), F.reserved, table.concat(chosen, ','), F.by_preemption, '1')
end

local function under_way(id) -- whether runs were preempted for the job and are still ending
  for device in string.gmatch(call('HGET', job_key(id), F.reserved) or '', '[^,]+') do
    local by, _, _, blockers = parse_reservation(call('HGET', rsv, device))
    for run in string.gmatch(by == id and blockers or '', '%d+') do
      if run_of(run).going and call('ZSCORE', P .. 'leases', run) then return true end
    end
  end
  return false
end

-- Return whether the job would start now on a device reserved for another job, without delaying that one. Same rule as
-- fits() in claim_room.lua.
local function starts_beside(device, user, shape)
  local mem, _, n = parse_shape(shape)
  local found = n == 1 and plan({device}, shape, now, user)
  if not found or found.start ~= now then return false end
  local _, need, start, blockers, likely = parse_reservation(call('HGET', rsv, device.name))
  local bytes, places = left_beside(device.name, device.capacity, device.slots, need, blockers)
  return (mem <= bytes and places >= 1 and not wants_alone(shape)) or ends_before(asks_of(shape, user), start, likely, now)
end

local function waits_for_room(id, user, shape) -- promoted jobs do not preempt
  local j = call('HMGET', job_key(id), F.state, F.promotions)
  if j[1] ~= 'queued' or to_count(j[2]) > 0 or under_way(id) then return false end
  if limit_in_the_way(user, shape, least_kind(shape)) then return false end
  for _, devices in ipairs(hosts) do
    local free = {}
    for _, device in ipairs(devices) do
      if not is_others(device, id) then free[#free + 1] = device
      elseif starts_beside(device, user, shape) then return false end
    end
    local found = plan(free, shape, now, user)
    if found and found.start == now then return false end -- the job is about to start
  end
  return true
end

local served = {} -- all devices that workers serve now
for _, devices in ipairs(hosts) do
  for _, device in ipairs(devices) do served[#served + 1] = device end
end
local function preempt_at(priority, lower)
  local tried, checks, checked = 0, 0, {}
  for _, user in ipairs(call('ZRANGE', key2('ul', priority), 0, -1)) do
    local heads = call('ZRANGE', key3('us', priority, user), 0, MOST_SHAPES - 1, 'WITHSCORES')
    for i = 1, #heads, 2 do
      local shape = heads[i]
      local id = first_at(heads[i + 1], priority, user, shape)
      local like = alike(user, shape)
      local is_new = not checked[like] and parse_shape(shape)
      if is_new and not could_be_hosted(served, shape, user) then -- costs no try
        checked[like], checks = true, checks + #served
        if checks > MOST_CHECKS then return end
      elseif is_new and waits_for_room(id, user, shape) then
        checked[like], tried = true, tried + 1
        local best
        for _, devices in ipairs(hosts) do
          local found = cheapest(devices, id, user, shape, lower)
          if found and (not best or costs_less(found, best)) then best = found end
        end
        if best and #best.victims + best.reserved > 0 then preempt_runs(id, shape, best) end
        if tried == MOST_SHAPES then return end
      end
    end
  end
end

for _, priority in ipairs(PRIORITIES) do
  for i = 4, #ARGV, 2 do
    if ARGV[i] == priority then preempt_at(priority, ARGV[i + 1]) end
  end
end
if #out > 0 or given_up then wake('room') end
return out
