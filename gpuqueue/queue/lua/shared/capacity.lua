-- Reservations: what they leave to other jobs, and when a device will have room. Goes after limits.lua; SHARED in
-- ../scripts.py lists the scripts that use it.
--
-- A reservation (rsv) is job:need:start:blockers:likely. `need` is the bytes reserved for the job. `blockers` are the
-- runs that must end before the job fits, comma-separated. `start` is when the last of these must have ended, 0 if one
-- has no time limit. `likely` is when they are likely to have ended, and at most half-way to the end of the reservation.
local parse_reservation, runs_on, runs_under, left_beside, reserved_in_vain, ends_before, planning_record, is_leaving,
  asks_of, alike, could_host, could_be_hosted, sooner, allowed_by_limits, plan, last_id_before, waits_since
do
local OVERDUE_MS = 60000 -- a run this long past its end ignores its limit: its end is unknown

-- Return when a run must have ended by its lease; 0 if unknown. `now` nil: also for an overdue run.
local function end_of_lease(text, now)
  local ends = tonumber(text) or 0
  return now and ends + OVERDUE_MS < now and 0 or ends
end

-- -> job, bytes, start, blockers, likely (0: unknown); or nil
function parse_reservation(text)
  local id, need, start, blockers, likely = string.match(text or '', '^(%d+):(%d+):(%d+):?([%d,]*):?(%d*)$')
  return id, tonumber(need), tonumber(start), blockers, tonumber(likely) or 0
end

-- Return the runs on a device: {id, bytes counted, when it must have ended (0: unknown), whether it is past that,
-- whether it is exclusive}.
function runs_on(device, total, now, leases)
  local runs = {}
  leases = leases or call('HGETALL', key2('dl', device))
  for i = 1, #leases, 2 do
    local lease, observed, ends, alone = string.match(leases[i + 1], '^(%d+):(%d+):?(%d*):?(x?)')
    local bytes = math.max(tonumber(lease) or total, tonumber(observed) or 0) -- unreadable lease: the whole device
    local ends_ms = end_of_lease(ends, now)
    runs[#runs + 1] = {id = leases[i], bytes = bytes, ends = ends_ms, overdue = ends_ms < (tonumber(ends) or 0), alone = alone == 'x'}
  end
  return runs
end

-- Return what the reserved job will not need even at its start, in bytes and slots: there other jobs may run without a
-- limit. ("Extra nodes" of EASY backfill: Lifka, The ANL/IBM SP Scheduling System, 1995. If no run has a limit, this is
-- the gap rule: what the job could not use even if all current runs were gone.)
function left_beside(device, capacity, slots, need, blockers, leases)
  local bytes, places = capacity - need, slots - 1
  for _, run in ipairs(runs_on(device, capacity, nil, leases)) do
    if not within(blockers, run.id) then bytes, places = bytes - run.bytes, places - 1 end
  end
  return bytes, places
end

-- Return whether a device of this kind is reserved for a job that cannot start there because of a limit of its user.
function reserved_in_vain(id, kind)
  if not limits_set() then return false end
  local j = call('HMGET', job_key(id), F.user, F.shape)
  return j[1] and j[2] and parse_shape(j[2]) and limit_in_the_way(j[1], j[2], kind) ~= nil
end

-- Return whether a job that asks for this is over before the reserved job starts: by its time limit, before the latest
-- or the likely start; or by how long earlier runs took, before the likely start.
function ends_before(asks, start, likely, now)
  if start == 0 and likely == 0 then return false end -- a claim asks this for many shapes
  local by, limit_s = now + GONE_MS, asks.limit_s
  if limit_s > 0 and (by + limit_s * 1000 <= start or by + limit_s * 1000 <= likely) then return true end
  local lasts_s = likely > 0 and asks.want.lasts_s
  return lasts_s and by + lasts_s * 1000 <= likely or false
end

-- Order runs by their end: first those with a time limit, then the others by age.
local function ends_sooner(a, b)
  if (a.ends > 0) ~= (b.ends > 0) then return a.ends > 0 end
  if a.ends ~= b.ends then return a.ends < b.ends end
  if a.since ~= b.since then return a.since < b.since end
  return tonumber(a.id) < tonumber(b.id)
end

-- Return a device as a record for planning; nil if no worker serves it now.
function planning_record(host, device, record, now)
  local total, headroom, external, seen, slots, pool, kind = parse_record(record)
  if not total or math.abs(now - tonumber(seen)) > SEEN_MS then return nil end
  local ends, calendar = closing_of(call('HGET', P .. 'drained', device), now)
  if ends and ends <= now then return nil end
  local capacity = total - headroom - external
  local found = {name = device, host = host, pool = pool, kind = kind, slots = tonumber(slots), total = tonumber(total),
    external = tonumber(external), capacity = capacity, free = capacity, runs = runs_on(device, tonumber(total), now),
    now = now, ends = ends, calendar = calendar}
  for _, run in ipairs(found.runs) do
    found.alone = found.alone or run.alone
    local claimed, in_vain, usual_s = unpack(call('HMGET', job_key(run.id), F.claimed_ms, F.in_vain_ms, F.usual_s))
    run.since, run.claimed = tonumber(claimed or '') or 0, claimed or ''
    run.usual_ms = tonumber(usual_s or '') and 1000 * usual_s
    run.lasts = run.ends == 0 and in_vain and in_vain == claimed -- see limit_reservation.lua; a preempted run has an end
    found.free = found.free - run.bytes
  end
  table.sort(found.runs, ends_sooner)
  return found
end

-- Return the runs of these users that have a lease, in the order of ends_sooner: {id, when it must have ended (0:
-- unknown), when it was claimed, whether it was waited for in vain, what it holds by measure}. Counted like held_by.
function runs_under(users, now)
  local found = {}
  for _, user in ipairs(users) do
    local runs = call('HGETALL', key2('run', user))
    for i = 1, #runs, 2 do
      local gpus, bytes = string.match(runs[i + 1], '^(%d+):(%d+)$')
      if gpus and call('ZSCORE', P .. 'leases', runs[i]) then
        local claimed, devices, in_vain = unpack(call('HMGET', job_key(runs[i]), F.claimed_ms, F.devices, F.in_vain_ms))
        local device = string.match(devices or '', '^[^,]+')
        local lease = device and call('HGET', key2('dl', device), runs[i]) or ''
        local ends = end_of_lease(string.match(lease, '^%d+:%d+:(%d+)') or '', now)
        found[#found + 1] = {id = runs[i], since = tonumber(claimed or '') or 0, claimed = claimed or '',
          ends = ends, lasts = ends == 0 and in_vain and in_vain == claimed,
          running_jobs = 1, running_gpus = tonumber(gpus), running_mem = tonumber(bytes)}
      end
    end
  end
  table.sort(found, ends_sooner)
  return found
end

-- Return whether a run that was cancelled, or preempted (`by`) with a deadline, is about to end. An overdue run is not.
function is_leaving(state, by, deadline, now)
  local is_late = (tonumber(deadline or '') or now) + OVERDUE_MS < now
  return (state == 'cancelling' or by ~= false) and not is_late
end

-- Return what a job of this shape and user asks for on each device; nil for a damaged shape. `most`: see max_mem_of.
function asks_of(shape, user)
  local mem, limit_s, n, pool, wanted_kind, more = parse_shape(shape)
  if not mem then return nil end
  local want = constraints(more)
  return {mem = mem, limit_s = limit_s, n = n, pool = pool, wanted_kind = wanted_kind, want = want, user = user,
    most = want.alone and max_mem_of(pool) or math.huge}
end

-- Return a text that is the same for jobs that may start at the same places and times.
function alike(user, shape) return (limits_set() or cache.any_calendar) and user .. ' ' .. shape or shape end

-- Return whether the job may use this device, would fit if none of our runs were there, and would be over before its end.
function could_host(device, asks)
  return asks.mem <= device.capacity and (asks.n == 1 or device.kind ~= 'mig') -- a process can use only one part of a GPU
    and belongs(asks.pool, asks.wanted_kind, asks.want, device.host, device.name, device.pool, device.kind)
    and undisturbed(asks.want, device.external, device.total) and device.capacity + device.external <= asks.most
    and over_in_time(asks, device.now, end_for(device.ends, device.calendar, asks.user))
end

function could_be_hosted(devices, shape, user) -- on any of these
  local asks = asks_of(shape, user)
  for _, device in ipairs(asks and devices or {}) do
    if could_host(device, asks) then return true end
  end
  return false
end

-- Find when a device has room. -> the time (now; later; 0: unknown) and the ids of the runs that must end first; nil:
-- never, as things are. An exclusive job waits for all runs, and every job waits for an exclusive run.
-- `awaited`: {run id -> true}, the runs that the job already waits for. If given, no other run that was waited for in
-- vain is waited for.
local function room_on(device, mem, now, want, awaited)
  local free, places, start, blockers, at = device.free, device.slots - #device.runs, now, {}, 0
  local first = (want.alone or device.alone) and #device.runs or 0
  while free < mem or places < 1 or #blockers < first do
    at = at + 1
    local run = device.runs[at]
    if not run then return nil end
    if not (awaited and run.lasts and not awaited[run.id]) then
      free, places = free + run.bytes, places + 1
      blockers[#blockers + 1] = run.id
      if run.ends == 0 or start == 0 then start = 0 else start = math.max(start, run.ends) end
    end
  end
  return start, table.concat(blockers, ',')
end

-- Return whether one start (0: unknown) is sooner than another.
function sooner(a, b) return a ~= b and a ~= 0 and (b == 0 or a < b) end

-- Choose n devices of one kind, best first in `row`, that the limits of the user allow for this shape, by the same rule
-- as the claim; nil if there are none. An exclusive job is charged, on each device, what the smallest of them can
-- allocate (`gives`), so one small enough device is enough. user nil: the first n, without limits.
function allowed_by_limits(row, n, user, shape)
  if #row < n then return nil end
  local chosen, alone = {unpack(row, 1, n)}, wants_alone(shape)
  if not user or not limits_set() then return chosen end
  for i = 1, alone and #row or 1 do
    if not limit_in_the_way(user, shape, row[i].kind, alone and math.max(row[i].gives, 0) or nil) then
      if i > n then chosen[n] = row[i] end
      return chosen
    end
  end
  return nil
end

-- Choose devices as allowed_by_limits does, of which none ends before the job is over: an unknown start may be too late.
local function in_time(row, asks, user, shape)
  while true do
    local chosen, kept = allowed_by_limits(row, asks.n, user, shape), {}
    local start = chosen and chosen[asks.n].start
    for _, device in ipairs(row) do
      if not (chosen and device.ends) or start > 0 and over_in_time(asks, start, device.ends) then kept[#kept + 1] = device end
    end
    if not chosen or #kept == #row then return chosen end
    row = kept
  end
end

-- Find where on these devices of one host a job of this shape starts first. All its devices are of one kind and allowed
-- by the limits of its user, unless `unlimited`. `awaited` as in room_on.
-- -> {start, free, {{name, start, blockers, all: the device's bytes if the job is exclusive}, ...}} | nil
function plan(devices, shape, now, user, awaited, unlimited)
  local asks, by_kind, best = asks_of(shape, user), {}, nil
  for _, device in ipairs(devices) do
    if could_host(device, asks) then
      local start, blockers = room_on(device, asks.mem, now, asks.want, awaited)
      if start then
        local row = by_kind[device.kind] or {}
        by_kind[device.kind] = row
        row[#row + 1] = {name = device.name, start = start, blockers = blockers, free = device.free,
          all = asks.want.alone and device.total or nil, gives = device.capacity, kind = device.kind,
          ends = end_for(device.ends, device.calendar, user)}
      end
    end
  end
  for _, row in pairs(by_kind) do
    table.sort(row, function(a, b)
      if a.start ~= b.start then return sooner(a.start, b.start) end
      if a.free ~= b.free then return a.free > b.free end
      return a.name < b.name
    end)
    local chosen = in_time(row, asks, not unlimited and user, shape)
    local last = chosen and chosen[asks.n]
    if last and (not best or sooner(last.start, best.start) or (last.start == best.start and last.free > best.free)) then
      best = {start = last.start, free = last.free, devices = chosen}
    end
  end
  return best
end

-- Return an upper bound on the ids of jobs submitted until this moment: ids grow with time. (With a damaged entry the
-- bound may be too high, so callers check each job's own time as well. For jobs submitted while the clock was ahead it
-- may be too low until that time has come.)
function last_id_before(moment)
  local low, high, found = 0, call('ZCARD', P .. 'live') - 1, 0
  while low <= high do
    local middle = math.floor((low + high) / 2)
    local id = call('ZRANGE', P .. 'live', middle, middle)[1]
    local submitted = tonumber(call('HGET', job_key(id), F.submitted_ms) or '') or 0
    if submitted <= moment then found, low = tonumber(id), middle + 1 else high = middle - 1 end
  end
  return found
end

-- Return since when a queued job has waited for its turn, in ms; `now` if unknown; nil if it does not wait. Time before
-- the job could start (held, waiting for a job or a begin time) does not count, nor time in which it ran. An array
-- whose members are being claimed counts from the last claim, or from when it could next be claimed.
function waits_since(id, now)
  local state, taken, since, submitted = unpack(call('HMGET', job_key(id), F.state, F.member_claimed_ms,
    F.ready_since_ms, F.submitted_ms))
  if state ~= 'queued' then return nil end
  local last = math.max(tonumber(taken or '') or 0, tonumber(since or '') or 0)
  return last > 0 and last or tonumber(submitted or '') or now
end
end
