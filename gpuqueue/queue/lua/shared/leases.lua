-- Leases: what a device can allocate, what a run holds, and what its end frees. Part of every script, after state.lua.

-- Compute what a device can allocate now: total - headroom - external - sum(max(lease, observed)). Derived from the live
-- leases each time; there is no counter that could drift.
-- -> available bytes, pool, seen, free slots, total, slots, kind, bytes if nothing ran, bytes of external processes,
-- runs; nil for a device that no worker announced
local function room_of(host, device, record, leases)
  record = record or call('HGET', key2('dev', host), device)
  if not record then return nil end
  local total, headroom, external, seen, slots, pool, kind = parse_record(record)
  if not total then return nil end -- damaged: the worker's next heartbeat rewrites it
  local available, capacity = total - headroom - external, total - headroom - external
  leases = leases or call('HGETALL', key2('dl', device))
  for i = 2, #leases, 2 do
    local lease, observed, alone = string.match(leases[i], '^(%d+):(%d+):?%d*:?(x?)')
    available = available - math.max(tonumber(lease) or total, tonumber(observed) or 0) -- unreadable lease: the whole device
    if alone == 'x' then available = math.min(available, 0) end -- memory that external processes free is not for other jobs
  end
  return available, pool, tonumber(seen), slots - #leases / 2, tonumber(total), tonumber(slots), kind, capacity,
    tonumber(external), #leases / 2
end

-- Return the bytes allocated to a run with exclusive devices on one of them: everything the device can allocate, or
-- `mem` while that is unknown.
local function all_of(host, device, mem)
  local _, _, _, _, _, _, _, capacity = room_of(host, device)
  return whole(math.max(capacity or 0, tonumber(mem)))
end

-- Return the bytes allocated to a run on each of its devices, by its leases; for exclusive devices the smallest. nil
-- without a lease.
local function allocated_to(id, names)
  local least
  for device in string.gmatch(names, '[^,]+') do
    local bytes = tonumber(string.match(call('HGET', key2('dl', device), id) or '', '^%d+') or '')
    least = bytes and math.min(least or bytes, bytes) or least
  end
  return least
end

-- Count what a run holds against the limits of its user, for as long as its leases exist.
local function count_run(id, user, mem, names)
  local devices, gpus = 0, 0
  for device in string.gmatch(names, '[^,]+') do
    devices = devices + 1
    if string.sub(device, 1, 4) ~= 'cpu-' and string.sub(device, 1, 6) ~= 'slurm-' then gpus = gpus + 1 end
  end
  call('HSET', key2('run', user), id, gpus .. ':' .. whole(devices * mem))
end

-- Return the expected utilisation in a spec, in percent, as text; nil if it is unknown. Names and values of an
-- environment and arguments are quoted, so none of them can look like the number.
local function busy_in(spec)
  local _, at = string.find(spec or '', '"expected_utilisation":', 1, true)
  local share = at and tonumber(string.match(spec, '^[%d.]+', at + 1))
  return share and whole(math.min(100, 100 * share))
end

-- Return the text of a new lease. `busy` is the expected utilisation of the run, nil if it is unknown. `nonce` is the
-- nonce of the claim: a claim that is sent twice gets the same answer twice.
local function lease_of(bytes, ends, alone, busy, nonce)
  return bytes .. ':0:' .. ends .. (alone and ':x:' or '::') .. (busy and busy .. ':' or '') .. nonce
end

-- Allocate memory to a run on each of its devices, and record the run's owner. Usage counts from now on.
-- -> the bytes allocated on the first device
local function hold_devices(id, run, mem, shape, now, expires)
  local _, limit_s = parse_shape(shape)
  local ends = limit_s > 0 and whole(tonumber(run.claimed_ms) + limit_s * 1000) or '0'
  call('HSET', job_key(id), F.token, run.token, F.host, run.host, F.worker, run.worker, F.devices, run.devices,
    F.claimed_ms, run.claimed_ms, F.rate, run.rate, F.claimed_fair_ms, whole(fair_ms(now)), F.deposit_s, 0)
  local alone, held, nonce, busy = wants_alone(shape), mem, string.match(run.token, '%w*$'), busy_in(run.spec)
  for device in string.gmatch(run.devices, '[^,]+') do
    local bytes = alone and all_of(run.host, device, mem) or mem
    if device == string.match(run.devices, '^[^,]+') then held = bytes end
    call('HSET', key2('dl', device), id, lease_of(bytes, ends, alone, busy, nonce))
  end
  count_run(id, call('HGET', job_key(id), F.user), allocated_to(id, run.devices) or tonumber(mem), run.devices) -- as in claim_take.lua
  call('ZADD', P .. 'leases', whole(expires), id)
  return held
end

-- Free all that a run holds, and replace its deposit with the seconds it really took: by its shim's clock where known
-- (took_s), because the store's clock may have been set meanwhile.
local function free_devices(id, job, now, took_s)
  for device in string.gmatch(job.devices or '', '[^,]+') do call('HDEL', key2('dl', device), id) end
  call('ZREM', P .. 'leases', id)
  if job.user then call('HDEL', key2('run', job.user), id) end
  if job.marks then call('HDEL', job_key(id), F.marks) end -- they are about this run
  local claimed, deposit_s, rate = tonumber(job.claimed_ms), tonumber(job.deposit_s), tonumber(job.rate)
  if not (job.user and claimed and deposit_s and rate) then return end -- damaged: the cost is unknown
  local spent_s = took_s or math.max(0, now - claimed) / 1000
  if took_s then -- it ran; the claim was not released
    -- Run lengths differ by orders of magnitude, so the mean is taken of their logarithms: the last run counts half,
    -- the value at the time of its claim the other half. (The deposit is no substitute: a time limit cuts it, a
    -- heartbeat raises it.)
    local before_s = tonumber(job.usual_s or call('HGET', P .. 'usual', job.user) or '') -- an adopted run has no claim
    local last_s = math.max(1, took_s)
    call('HSET', P .. 'usual', job.user, whole(before_s and math.sqrt(math.max(1, before_s) * last_s) or last_s))
  end
  charge(job.user, (spent_s - deposit_s) * rate * weight(tonumber(job.claimed_fair_ms) or claimed), share_of(job.user), priorities_waited_at())
end
