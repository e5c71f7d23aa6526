-- Explain why a job does not run, from the same figures and by the same rules as a claim. Changes nothing.
-- ARGV: id
-- returns {} if unknown | {state, priority, jobs at higher priorities, users with less usage, their jobs at this
--   priority, own jobs ahead, since when the job has waited for its turn in ms ('': it does not wait), forecast,
--   limits, limit room, devices ...}
--   forecast: {when there is room on the devices in ms (0: unknown), devices, blockers, those of them that were waited
--     for in vain, jobs ahead that may take the room, 1 if the job also waits for room under limits or '', the job that
--     the devices are reserved for, if the time is that of its start, or ''} | {}
--   limits: {{user or @ and group, measure, used, most, asked, the job that the room is reserved for or '', ids of the
--     runs ...}, ...}, the limits in the job's way
--   limit room: {when there is room under all of them in ms (0: unknown), the job that must start or leave first
--     because the room is reserved for it or '', ids of the runs whose ends make the room} | {}
--   of each device: name, host, obstacle, bytes available, bytes available if nothing ran, its memory, the job that it
--     is reserved for or '', 1 if runs were preempted for that job (preempt.lua) or '', and for each run there: id,
--     bytes, when it must have ended in ms (0: no limit), how often its job was preempted, 1 if it ends in any case or
--     '', its priority or ''
--   of a job that does not wait: {state, priority, 0, 0, 0, 0, '', {}, {}, {}, {the job that it is preempted for or '',
--     by when in ms or '', how often it was preempted}}
local wrong = expect {'id'}
if wrong then return wrong end
local id = ARGV[1]
local job = read_job(id)
if not job.state then return {} end
if job.state ~= 'queued' and job.state ~= 'held' or not queueable(job) then
  local by, deadline, times = unpack(call('HMGET', job_key(id), F.preempted_by, F.preempt_until_ms, F.preemptions))
  return {job.state, job.priority or '1', 0, 0, 0, 0, '', {}, {}, {}, {by or '', deadline or '', times or '0'}}
end
local now = now_ms()
local mem, limit_s, n, wanted_pool, wish, more = parse_shape(job.shape)
local want = constraints(more)
local most = want.alone and most_alone(wanted_pool) or math.huge -- most_alone: limits.lua

local function text(number) return string.format('%.0f', number) end

-- The limits that block it everywhere; if there are none, those of the first device where a limit blocks it.
local limits = limits_in_the_way(job.user, job.shape, least_kind(job.shape))
-- Return whether a limit leaves no room for the job on a device of this kind, charged with so many bytes.
local function is_beyond(kind, charged)
  local is_so = limit_in_the_way(job.user, job.shape, kind, charged) ~= nil
  if is_so and #limits == 0 then limits = limits_in_the_way(job.user, job.shape, kind, charged) end
  return is_so
end

-- Return the first obstacle between the job and this device; `fits` if there is none.
local function obstacle(device, available, pool, seen, slots, total, kind, headroom, capacity, all_slots, holder, need, start, blockers,
    foreign, running)
  if wanted_pool ~= '' and wanted_pool ~= pool then return 'pool' end
  if not suits(wish, kind) then return 'kind' end
  if not is_named(want.devices, device) then return 'named' end
  if not of_model(want.models, device) then return 'model' end
  if n > 1 and kind == 'mig' then return 'part' end
  if mem > total - headroom then return 'too_small' end
  if total - headroom > most then return 'too_large' end
  if call('HEXISTS', P .. 'drained', device) == 1 then return 'drained' end
  if math.abs(now - seen) > SEEN_MS then return 'silent' end
  if #running == 1 and running[1].alone then return 'exclusive' end
  if not alone_there(want, #running, foreign, total) then return 'occupied' end
  if mem > available then return 'memory' end
  if slots <= 0 then return 'slots' end
  if holder and holder ~= id then
    local bytes, places = left_beside(device, capacity, all_slots, need, blockers)
    if n > 1 or not ((mem <= bytes and places >= 1 and not want.alone) or ends_before(limit_s, start, now)) then return 'kept' end
  end
  if job.state == 'held' or (job.reason or '') ~= '' then return 'not_yet' end
  return is_beyond(kind, n == 1 and want.alone and available or nil) and 'limit' or 'fits'
end

-- Return whether the job may start at this moment (0: unknown) on a device reserved for another job, once these runs
-- are gone: beside that job, or before it. A job that ends before the other one starts (`is_later`) does not compete
-- with it.
local function passes(other, blockers, at)
  local bytes, places = left_beside(other.device, other.capacity, other.slots, other.need, other.blockers .. ',' .. blockers)
  if n > 1 then return false end
  other.is_later = at > 0 and ends_before(limit_s, other.start, at)
  return other.is_later or (mem <= bytes and places >= 1 and not want.alone)
end

-- Find where the job has room first, ignoring reservations. Only called if there is no other forecast. Also nil if
-- reservations are all that is in its way: the devices' obstacles show that.
local function plan_behind(pictures)
  local found, is_beyond_limits = plan(pictures, job.shape, now, job.user), false
  if not found then found, is_beyond_limits = plan(pictures, job.shape, now), true end
  if not found then return nil end
  found.beyond = is_beyond_limits
  local waits, kept, others = false, false, {}
  for _, device in ipairs(found.devices) do
    waits = waits or device.blockers ~= ''
    for _, each in ipairs(pictures) do
      if each.name == device.name and each.other then
        others[#others + 1] = {it = each.other, blockers = device.blockers}
        kept = kept or each.other.is_all
      end
    end
  end
  if kept and not waits then return nil end
  local own_start = found.start
  for _, other in ipairs(others) do
    local its = other.it.start
    if not passes(other.it, other.blockers, own_start) and waits and found.start ~= 0 and (its == 0 or its > found.start) then
      found.start, found.behind = its, other.it.id -- not before the job that holds the reservation starts
    end
  end
  return found
end

local devices, plans, beyond_plans, behind_plans, lasting, drawn, served = {}, nil, nil, nil, {}, {}, {}
local names = call('SMEMBERS', P .. 'hosts')
table.sort(names)
for _, host in ipairs(names) do
  local records, fitting, planned, all = call('HGETALL', key2('dev', host)), {}, {}, {}
  for i = 1, #records, 2 do
    local device = records[i]
    local available, pool, seen, slots, total, all_slots, kind, capacity, foreign = promise(host, device)
    if available then
      local holder, need, start, blockers = parse_reservation(call('HGET', P .. 'rsv', device))
      if holder and holder ~= id and reserved_in_vain(holder, kind) then holder = nil end
      local _, headroom = parse_record(records[i + 1])
      local running = runs_on(device, total)
      local why = obstacle(device, available, pool, seen, slots, total, kind, tonumber(headroom), capacity, all_slots,
        holder, need, start, blockers, foreign, running)
      local row = {device, host, why, text(available), text(capacity), text(total), holder or '',
        holder and call('HGET', job_key(holder), F.by_preemption) or ''}
      for _, run in ipairs(running) do
        local st, pre, times, lv, until_ms = unpack(call('HMGET', job_key(run.id), F.state, F.preempted_by,
          F.preemptions, F.priority, F.preempt_until_ms))
        local going = is_leaving(st, pre, until_ms, now) and '1' or ''
        local level = string.match(lv or '', '^[0-3]$') or ''
        for _, value in ipairs({run.id, text(run.bytes), text(run.ends), text(counted(times)), going, level}) do
          row[#row + 1] = value
        end
      end
      devices[#devices + 1] = row
      if why == 'fits' then
        fitting[kind] = fitting[kind] or {}
        table.insert(fitting[kind], row)
      end
      local pictured = picture(host, device, records[i + 1], now)
      if pictured then
        all[#all + 1], drawn[device] = pictured, pictured
        for _, run in ipairs(pictured.runs) do lasting[run.id] = run.lasts end
        if not holder or holder == id then
          planned[#planned + 1], pictured.kept = pictured, holder == id
        else
          pictured.other = {id = holder, start = start, is_all = why == 'kept', device = device, capacity = capacity,
            slots = all_slots, need = need, blockers = blockers}
        end
      end
    end
  end
  for kind, rows in pairs(fitting) do -- a job on several devices gets all of them or none
    local least = math.huge
    for _, row in ipairs(rows) do least = math.min(least, tonumber(row[4])) end
    local beyond = n > 1 and #rows >= n and want.alone and is_beyond(kind, least)
    for _, row in ipairs(rows) do row[3] = #rows < n and 'alone' or beyond and 'limit' or 'fits' end
  end
  served[host] = all
  local found = plan(planned, job.shape, now, job.user)
  if found and (not plans or sooner(found.start, plans.start)) then plans = found end
  local other = not found and plan(planned, job.shape, now) -- where the job could start without its limits
  if other and (not beyond_plans or sooner(other.start, beyond_plans.start)) then beyond_plans = other end
  local behind = not found and not other and plan_behind(all)
  if behind and (not behind_plans or sooner(behind.start, behind_plans.start)) then behind_plans = behind end
end
if not plans and beyond_plans then
  plans = beyond_plans
  plans.beyond = true
end
plans = plans or behind_plans
local charged -- what an exclusive job is charged on each device of the plan
for _, device in ipairs(plans and want.alone and plans.devices or {}) do
  charged = math.min(charged or math.huge, math.max(device.gives, 0))
end
if plans and plans.beyond and #limits == 0 then -- occupied; once empty, it gives more than a limit allows
  limits = limits_in_the_way(job.user, job.shape, plans.devices[1].kind, charged)
  if limits[1] and limits[1].asked > limits[1].most then plans, limits = nil, {} end -- the job can never have such a device
end

local ahead = {} -- the jobs ahead, by shape: {shape, user, line, below, from, count}
local function waiting(lv, user, below) -- a user's jobs at a priority, at positions below a bound
  local count = 0
  for _, shape in ipairs(call('ZRANGE', key3('us', lv, user), 0, -1)) do
    local line = queue_key(lv, user, shape)
    local here = call('ZCOUNT', line, '-inf', below)
    if here > 0 then ahead[#ahead + 1] = {shape = shape, user = user, line = line, below = below, count = here} end
    count = count + here
  end
  return count
end

local higher, users_before, theirs = 0, 0, 0
for _, lv in ipairs(LEVELS) do
  if lv == job.priority then break end
  for _, user in ipairs(call('ZRANGE', key2('ul', lv), 0, -1)) do higher = higher + waiting(lv, user, '+inf') end
end
for _, user in ipairs(call('ZRANGE', key2('ul', job.priority), 0, -1)) do
  if user == job.user then break end
  users_before, theirs = users_before + 1, theirs + waiting(job.priority, user, '+inf')
end
local own_before = waiting(job.priority, job.user, '(' .. place_of(id))

local under = #limits > 0 and room_under_limits(limits, job.user, job.shape, plans and plans.start or now, now)

-- Jobs with a reservation on devices of the plan are ahead there, whatever their position in the order; but a job that
-- ends before they start is ahead of them.
local judged = {} -- id -> true
local function goes_before(id, is_so)
  local its = read_job(id)
  if judged[id] or its.state ~= 'queued' or not queueable(its) then return end
  judged[id] = true
  local line, place, among = queue_key(its.priority, its.user, its.shape), place_of(id), nil
  for _, each in ipairs(ahead) do
    local below = tonumber((string.gsub(each.below, '^%(', ''))) or math.huge
    if each.line == line and tonumber(place) <= below then among = each end
  end
  if among and not is_so then among.count = among.count - 1 end
  if is_so and not among then
    ahead[#ahead + 1] = {shape = its.shape, user = its.user, line = line, from = place, below = place, count = 1}
  end
end
for _, later in ipairs(under and plans and plans.beyond and under.gone_before or {}) do goes_before(later, false) end
for _, device in ipairs(plans and plans.devices or {}) do
  local other = drawn[device.name].other
  if other then goes_before(other.id, not other.is_later) end
end

local MOST_LOOKED_AT = 32 -- jobs of one shape; more than that fill any device
local function has_arrays(each) -- an array counts as one job, and takes the room of many
  if each.count > MOST_LOOKED_AT then return true end
  for _, other in ipairs(call('ZRANGE', each.line, each.from or '-inf', each.below, 'BYSCORE')) do
    if call('HEXISTS', job_key(other), F.left) == 1 then return true end
  end
  return false
end

-- Return whether enough devices for a job of this shape are served now and large enough. A job without them (drained
-- device, silent worker) competes with no other, however long it waits. `host` nil: any host.
local startable = {} -- shape and host -> whether it can
local function can_start(shape, host)
  local known = shape .. ' ' .. (host or '')
  if startable[known] ~= nil then return startable[known] end
  startable[known] = false
  local asks = asks_of(shape)
  for name, pictures in pairs(asks and served or {}) do
    local of_kind = {}
    for _, there in ipairs((not host or name == host) and pictures or {}) do
      if could_host(there, asks) then
        of_kind[there.kind] = (of_kind[there.kind] or 0) + 1
        startable[known] = startable[known] or of_kind[there.kind] >= asks.n
      end
    end
  end
  return startable[known]
end

local function never_let(user, shape) -- the job on its own exceeds a limit of its user
  local limit = limits_set() and limit_in_the_way(user, shape, nil, nil, true)
  return limit and limit.asked > limit.most
end

-- Find the jobs ahead that may take the room on these devices; none if there is enough for these too.
local function rivals_there(devices_of_it, found)
  local enough, taken, jobs, these = true, {}, {}, {}
  for _, each in ipairs(ahead) do
    local asks = asks_of(each.shape)
    for _, device in ipairs(asks and each.count > 0 and devices_of_it or {}) do
      local there = drawn[device.name]
      if not there.kept and could_host(there, asks) and can_start(each.shape, there.host)
        and not never_let(each.user, each.shape) then
        these[each] = true
        taken[there.name] = (taken[there.name] or 0) + each.count * asks.mem
        jobs[there.name] = (jobs[there.name] or 0) + each.count
        enough = enough and not asks.want.alone and not want.alone
      end
    end
    enough = enough and not (these[each] and has_arrays(each))
  end
  for _, device in ipairs(devices_of_it) do
    local there = drawn[device.name]
    local free, places = there.capacity, there.slots
    for _, run in ipairs(there.runs) do
      if not within(device.blockers, run.id) then free, places = free - run.bytes, places - 1 end
    end
    enough = enough and (taken[there.name] or 0) + mem <= free and (jobs[there.name] or 0) < places
  end
  for each in pairs(enough and {} or these) do found[each] = true end
end

-- Find the jobs ahead that may take the room under a limit that the job needs, once these runs are gone.
local function rivals_under(has_gone, kind, found)
  for _, limit in ipairs(under_each_limit(job.user, asked_for(job.shape, kind, charged), has_gone)) do
    local left, under, these, arrays = limit.left, {}, {}, false
    for _, user in ipairs(limit.users) do under[user] = true end
    for _, each in ipairs(ahead) do
      local takes = under[each.user] and each.count > 0 and parse_shape(each.shape) and asked_for(each.shape)[limit.measure] or 0
      if takes > 0 and can_start(each.shape) and not never_let(each.user, each.shape) then
        left, these[each] = left - takes * each.count, true
        arrays = arrays or has_arrays(each)
      end
    end
    for each in pairs((left < 0 or arrays) and these or {}) do found[each] = true end
  end
end

local first = {}
if plans and not (job.state == 'queued' and (job.reason or '') ~= '') then
  local where, blockers, in_vain = {}, {}, {}
  for _, device in ipairs(plans.devices) do
    where[#where + 1] = device.name
    if device.blockers ~= '' then blockers[#blockers + 1] = device.blockers end
    for run in string.gmatch(device.blockers, '%d+') do
      if lasting[run] then in_vain[#in_vain + 1] = run end
    end
  end
  local gone, found, rivals = {}, {}, 0
  for run in string.gmatch(table.concat(blockers, ','), '%d+') do gone[run] = true end
  for _, run in ipairs(under and plans.beyond and under.ids or {}) do gone[run] = true end
  rivals_there(plans.devices, found)
  rivals_under(function(run) return gone[run] end, plans.devices[1].kind, found)
  for each in pairs(found) do rivals = rivals + each.count end
  first = {text(plans.start), table.concat(where, ','), table.concat(blockers, ','), table.concat(in_vain, ','),
    text(rivals), under and plans.beyond and '1' or '', plans.behind or ''}
end

local told = {}
for _, each in ipairs(limits) do
  told[#told + 1] = {each.whose, each.measure, text(each.used), text(each.most), text(each.asked), each.kept or '',
    unpack(each.ids)}
end
local since = waits_since(id, now)
local room = under and {text(under.at), under.kept or '', table.concat(under.ids, ',')} or {}
return {job.state, job.priority, higher, users_before, theirs, own_before, since and text(since) or '', first, told, room, unpack(devices)}
