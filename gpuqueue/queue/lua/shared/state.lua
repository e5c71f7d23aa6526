-- Devices, allocated memory, usage, the order of the queue, ends of jobs. Second part of every script, after core.lua.

-- Return why the store cannot serve, or nil. A store that lost its data knows no job: its answers would end live runs,
-- and it would assign ids twice. Every script checks this first, except those that rebuild the store (see
-- ../scripts.py).
local function refusal()
  if call('EXISTS', P .. 'epoch') == 1 then return nil end
  if call('EXISTS', P .. 'rebuilding') == 1 then return redis.error_reply('REBUILDING the jobs are on their way back') end
  return redis.error_reply('NOTOPEN the store knows nothing')
end

local GONE_MS = 5000 -- a run at its time limit still needs a moment to exit (GONE_MS in ../limit_matching.py)

-- Return whether a job of this shape asks for exclusive devices. Its leases are marked, and no other job joins it
-- there.
local function wants_alone(shape)
  local _, _, _, _, _, more = parse_shape(shape)
  return string.find(more or '', '^%a*x') ~= nil
end

-- Parse the record of a device. -> total, headroom, foreign (bytes of external processes), seen, slots, pool, kind
-- (gpu; mig, a part of a GPU; simulated; cpu).
local function parse_record(record)
  return string.match(record, '^(%d+):(%d+):(%d+):(%d+):(%d+):([^:]*):(.*)$')
end

-- Return whether the queue knows of a GPU. Lost, drained and silent GPUs count until they are withdrawn. Read at most
-- once.
local function gpus_known()
  if learned.gpus_known ~= nil then return learned.gpus_known end
  learned.gpus_known = false
  local hosts = call('SMEMBERS', P .. 'hosts')
  for h = 1, #hosts do
    local records = call('HGETALL', key2('dev', hosts[h]))
    for i = 1, #records, 2 do
      local total, _, _, _, _, _, kind = parse_record(records[i + 1])
      if total and kind ~= 'cpu' then
        learned.gpus_known = true
        return true
      end
    end
  end
  return false
end

-- Return whether a device of this kind may take a job that asks for the kind `wish`. Same rule as
-- gpuqueue.model.device.suits. An unknown `wish` matches no device.
local function suits(wish, kind)
  local on_gpu = kind ~= 'cpu'
  if wish == '' then return on_gpu or not gpus_known() end
  if wish == 'gpu' then return on_gpu end
  if wish == 'cpu' then return not on_gpu end
  return wish == 'any'
end

-- Arguments are checked before the first write, because writes are not undone when a script fails half-way. Each script
-- lists the kinds of its arguments in order. Error messages do not repeat the argument: it may contain anything.
local misfit, expect
do
local NUMBER, WORD, MOST = '^%d+$', '^[%w_.@+-]+$', '9007199254740992' -- 2^53: a double holds every integer up to here
local KINDS = {
  levels = '^[0-3]+$', id = '^[1-9]%d*$', size = '^[1-9]%d*$', bytes = NUMBER, ms = NUMBER, count = NUMBER, level = '^[0-3]$', ['level?'] = '^[0-3]?$', flag = '^[01]$',
  token = '^%d+%.%w+$', nonce = '^%w+$', user = WORD, by = '^[%w_.@+-]*$', host = WORD, pool = '^[%w_.@+-]*$', worker = '^[^%c]+$',
  device = '^[!-+%-.-9;-~]+$', shape = '^%d+:%d+:[1-9]%d?:[%w_.@+:,/-]*$', word = WORD,
  devices = '^[!-+%-.-9;-~,]*$', -- a device has no comma or colon
  gang = '^[!-+%-.-9;-~,]+$', -- the devices of a run: at least one
  passed = '^%d*$', -- empty if unknown
  later = '^%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d$', -- ms; at most thirty years
  users = '^[%w_.@+*,-]*$', tags = '^[%w_.@+,-]*$', -- comma-separated
  indexes = '^[%d,-]*$', ranges = '^[%d,:-]*$', -- of an array; ranges may have steps
  limit = '^%a+:[%w_.@+*-]+$', figures = '^[%w_.@+=!, -]*$', -- see limits.lua
  reason = '^[%a_]*$', rate = '^%d?%d?%d?%d%.%d+$',
}
-- Longest argument, in characters. `ranges` come from the queue itself and may list a million indexes, of six digits
-- and a comma each: code that reads them must be linear (count_in in array.lua).
local LONGEST, LONGEST_RANGES = 4096, 7 * 1000000
local NUMBERS = {id = true, size = true, bytes = true, ms = true, count = true, passed = true, later = true}

-- Check arguments. -> the error reply, or nil. `from` is the first argument that is checked, 1 by default.
function misfit(kinds, from)
  for i = 1, #kinds do
    local kind, text = kinds[i], ARGV[(from or 1) + i - 1]
    local good = text and (kind == 'text' or (#text <= (kind == 'ranges' and LONGEST_RANGES or LONGEST) and string.find(text, KINDS[kind])))
    if good and kind == 'gang' then good = not string.find(',' .. text .. ',', ',,', 1, true) end
    if good and NUMBERS[kind] then good = #text < #MOST or (#text == #MOST and text <= MOST) end
    if not good then return redis.error_reply('BADARGS argument ' .. (from or 1) + i - 1 .. ' is no ' .. kind) end
  end
end

-- Check arguments like misfit, and also that there are no more of them.
function expect(kinds)
  if #ARGV > #kinds then return redis.error_reply('BADARGS there are ' .. #ARGV .. ' arguments, not ' .. #kinds) end
  return misfit(kinds)
end
end

-- Forward decay (Cormode et al., "Forward Decay", ICDE 2009): a device-second spent at t weighs 2^((t - T0) /
-- half-life). Dividing all scores by one number never changes their order, so a score only needs additions.
-- Scores are whole numbers: the store keeps small sets as text and parses fractions slowly, for all users at each
-- claim. Weights are at least 2^10, so rounding costs at most a thousandth of a device-second.
local LEAST_EXPONENT = 10
local meta, set_meta
do
local T0_S, HALF_LIFE_S = 1735689600, 7 * 86400
function meta() -- the site's settings
  if learned.meta then return learned.meta end
  local claims, ticked, fair, t0, half_life, order =
    unpack(call('HMGET', P .. 'meta', 'claims', 'reap', 'fair', 't0', 'half_life', 'order'))
  learned.meta = {claims = tonumber(claims or '') or 0, ticked = tonumber(ticked or '') or 0, fair = tonumber(fair or ''), t0_s = tonumber(t0 or '') or T0_S,
    half_life_s = tonumber(half_life or '') or HALF_LIFE_S, order = order or ''}
  return learned.meta
end
function set_meta(...)
  call('HSET', P .. 'meta', ...)
  learned.meta = nil
end
end
-- Return whether claims are paused because the store was rebuilt a moment ago (rebuild_finish.lua). The pause lasts
-- until a tick has seen its end: a store that was down in between learns from its next tick that the pause goes on
-- (reap.lua).
local function pausing(now) return meta().claims > math.min(now, meta().ticked) end

local function exponent(ms) return (ms / 1000 - meta().t0_s) / meta().half_life_s end
local function weight(ms) return 2 ^ math.max(-500, math.min(500, exponent(ms))) end -- a clock may jump; a double holds 2^1023

-- Return the time that usage decays by. The reapers' ticks advance it by the time that really passed (reap.lua): usage
-- charged while the clock is a year ahead would otherwise outweigh all usage of that year.
local function fair_ms(now) return meta().fair or now end

local function rounded(usage) return math.floor(usage + 0.5) end

-- Restart the weights at this moment with this half-life, and multiply the usage of each user by factor(user).
-- All scores are read before the first write, so that a damaged entry stops the script before it changes anything: a
-- change that stops half-way would be repeated at each tick. A score that is no finite number becomes 0.
local function rebase(ms, half_life_s, factor)
  local scale = 2 ^ LEAST_EXPONENT / weight(ms)
  local found = call('ZRANGE', P .. 'fair', 0, -1, 'WITHSCORES')
  for i = 1, #LEVELS do call('ZCARD', key2('ul', LEVELS[i])) end
  for i = 1, #found, 2 do
    local user, usage = found[i], found[i + 1] * scale * factor(found[i])
    usage = math.abs(usage) < math.huge and rounded(usage) or 0
    call('ZADD', P .. 'fair', usage, user)
    for each = 1, #LEVELS do call('ZADD', key2('ul', LEVELS[each]), 'XX', usage, user) end
  end
  set_meta('t0', string.format('%.3f', ms / 1000 - LEAST_EXPONENT * half_life_s), 'half_life', string.format('%.3f', half_life_s))
end

-- Restart the weights when their exponent leaves the range. After many half-lives scores would exceed what a double
-- counts exactly.
local function keep_in_reach(ms)
  local now_at = exponent(ms)
  if now_at < LEAST_EXPONENT - 1 or now_at > 2 * LEAST_EXPONENT then
    rebase(ms, meta().half_life_s, function() return 1 end)
  end
end

-- Return the priorities at which a user waits, highest first. Mostly that is the normal one alone; its queue is not
-- checked.
local function levels_waited_at()
  local urgent, high, low = there(P .. 'ul:3', P .. 'ul:2', P .. 'ul:0')
  if not (urgent or high or low) then return {'1'} end
  local found = {}
  if urgent then found[1] = '3' end
  if high then found[#found + 1] = '2' end
  found[#found + 1] = '1'
  if low then found[#found + 1] = '0' end
  return found
end

-- Return the user's share, in thousandths.
local function share_of(user) return tonumber(call('HGET', P .. 'shares', user) or '') or 1000 end

-- Add usage to a user's score, divided by the share: a user with twice the share may use twice as much.
local function charge(user, amount, share, levels)
  local usage = call('ZINCRBY', P .. 'fair', rounded(amount * 1000 / share), user)
  for i = 1, #levels do call('ZADD', key2('ul', levels[i]), 'XX', usage, user) end
end

-- A claim charges a run in advance, so that a user cannot claim every device before the first charge: as many seconds
-- as the user's runs usually take, at most DEPOSIT_S or the time limit. Heartbeats charge what exceeds that
-- (heartbeat.lua). With the same deposit for all runs without a limit, short runs would at times cost their user as
-- much as long ones.
local DEPOSIT_S = 600

-- Return the position of a job among the jobs of its user: its id, or a number below 0 if it was moved to the front
-- (see priority_front.lua).
local function place_of(id)
  local front = call('HGET', job_key(id), F.front)
  return front and '-' .. front or id
end

-- Return the id of the first job of a shape. `place` is its position, as us:<lv>:<user> has it. A positive position is
-- the id itself.
local function first_at(place, lv, user, shape)
  if type(place) == 'string' and string.find(place, '^[1-9]%d*$') then return place end
  if tonumber(place) > 0 then return string.format('%.0f', place) end
  return call('ZRANGE', queue_key(lv, user, shape), 0, 0)[1] or '0' -- a stale entry has no first job
end

-- Drop the notes of claims that skip a new job. A claim starts at the user's first shape that it noted to have room for
-- (see claim.lua); that is wrong once an earlier position is in the queue.
local function recall_passed(lv, user, place)
  local noted = key3('ub', lv, user)
  local notes = call('HGETALL', noted) -- device -> bytes:beside:kept:from, see ub in ../keys.py
  for i = 1, #notes, 2 do
    local from = tonumber(string.match(notes[i + 1], '%-?%d+$') or '')
    if not from or tonumber(place) <= from then call('HDEL', noted, notes[i]) end
  end
end

local function enqueue(id, lv, user, shape)
  local shapes, place = key3('us', lv, user), place_of(id)
  call('ZADD', queue_key(lv, user, shape), place, id)
  if call('ZADD', shapes, 'LT', 'CH', place, shape) == 0 then return end -- neither a new shape nor an earlier first job
  if call('SADD', key3('su', lv, shape), user) == 1 then
    call('ZADD', key2('sh', lv), (parse_shape(shape)), shape)
  end
  if call('ZSCORE', key2('ul', lv), user) then
    recall_passed(lv, user, place)
  else
    call('ZADD', key2('ul', lv), call('ZSCORE', P .. 'fair', user) or 0, user)
  end
end

-- Drop the reservation of a job that has started or no longer waits. -> whether it had one
local function unreserve(id)
  local kept = call('HGET', job_key(id), F.reserved)
  if not kept then return false end
  for device in string.gmatch(kept, '[^,]+') do
    if string.match(call('HGET', P .. 'rsv', device) or '', '^(%d+):') == id then call('HDEL', P .. 'rsv', device) end
  end
  call('HDEL', job_key(id), F.reserved, F.reserved_since_ms, F.reserved_runs, F.by_preemption)
  return true
end

local function leave_line(id, lv, user, shape)
  if not (lv and user and shape) then return end -- a damaged entry is in no queue
  local queue, shapes = queue_key(lv, user, shape), key3('us', lv, user)
  if call('ZREM', queue, id) == 0 then return end
  local head = call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  if head[1] then
    call('ZADD', shapes, head[2], shape)
    return
  end
  call('ZREM', shapes, shape)
  call('SREM', key3('su', lv, shape), user)
  if call('EXISTS', key3('su', lv, shape)) == 0 then call('ZREM', key2('sh', lv), shape) end
  local waits, noted = there(shapes, key3('ub', lv, user))
  if not waits then
    call('ZREM', key2('ul', lv), user)
    if noted then call('DEL', key3('ub', lv, user)) end
  end
end


-- Compute what a device can allocate now: total - headroom - foreign - sum(max(lease, observed)). Derived from the live
-- leases each time; there is no counter that could drift.
-- -> available bytes, pool, seen, free slots, total, slots, kind, bytes if nothing ran, bytes of external processes,
-- runs; nil for a device that no worker announced
local function promise(host, device, record, leases)
  record = record or call('HGET', key2('dev', host), device)
  if not record then return nil end
  local total, headroom, foreign, seen, slots, pool, kind = parse_record(record)
  if not total then return nil end -- damaged: the worker's next heartbeat rewrites it
  local available, capacity = total - headroom - foreign, total - headroom - foreign
  leases = leases or call('HGETALL', key2('dl', device))
  for i = 2, #leases, 2 do
    local lease, observed, alone = string.match(leases[i], '^(%d+):(%d+):?%d*:?(x?)')
    available = available - math.max(tonumber(lease) or total, tonumber(observed) or 0) -- unreadable lease: the whole device
    if alone == 'x' then available = math.min(available, 0) end -- memory that external processes free is not for other jobs
  end
  return available, pool, tonumber(seen), slots - #leases / 2, tonumber(total), tonumber(slots), kind, capacity,
    tonumber(foreign), #leases / 2
end

-- Return the bytes allocated to a run with exclusive devices on one of them: everything the device can allocate, or
-- `mem` while that is unknown.
local function all_of(host, device, mem)
  local _, _, _, _, _, _, _, capacity = promise(host, device)
  return string.format('%.0f', math.max(capacity or 0, tonumber(mem)))
end

-- Return the bytes allocated to a run on each of its devices, by its leases; for exclusive devices the smallest. nil
-- without a lease.
local function promised_to(id, names)
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
    if string.sub(device, 1, 4) ~= 'cpu-' then gpus = gpus + 1 end
  end
  call('HSET', key2('run', user), id, gpus .. ':' .. string.format('%.0f', devices * mem))
end

-- Return the text of a new lease. `nonce` is the nonce of the claim: a claim that is sent twice gets the same answer
-- twice.
local function lease_of(bytes, ends, alone, nonce) return bytes .. ':0:' .. ends .. (alone and ':x:' or '::') .. nonce end

-- Allocate memory to a run on each of its devices, and record the run's owner. Usage counts from now on.
-- -> the bytes allocated on the first device
local function hold_devices(id, run, mem, shape, now, expires)
  local _, limit_s = parse_shape(shape)
  local ends = limit_s > 0 and string.format('%.0f', tonumber(run.claimed_ms) + limit_s * 1000) or '0'
  call('HSET', job_key(id), F.token, run.token, F.host, run.host, F.worker, run.worker, F.devices, run.devices,
    F.claimed_ms, run.claimed_ms, F.rate, run.rate, F.claimed_fair_ms, string.format('%.0f', fair_ms(now)), F.deposit_s, 0)
  local alone, held, nonce = wants_alone(shape), mem, string.match(run.token, '%w*$')
  for device in string.gmatch(run.devices, '[^,]+') do
    local bytes = alone and all_of(run.host, device, mem) or mem
    if device == string.match(run.devices, '^[^,]+') then held = bytes end
    call('HSET', key2('dl', device), id, lease_of(bytes, ends, alone, nonce))
  end
  count_run(id, call('HGET', job_key(id), F.user), promised_to(id, run.devices) or tonumber(mem), run.devices) -- as in claim.lua
  call('ZADD', P .. 'leases', string.format('%.0f', expires), id)
  return held
end

-- Free all that a run holds, and replace its deposit with the seconds it really took: by its shim's clock where known
-- (took_s), because the store's clock may have been set meanwhile.
local function free_devices(id, job, now, took_s)
  for device in string.gmatch(job.devices or '', '[^,]+') do call('HDEL', key2('dl', device), id) end
  call('ZREM', P .. 'leases', id)
  if job.user then call('HDEL', key2('run', job.user), id) end
  local claimed, deposit_s, rate = tonumber(job.claimed_ms), tonumber(job.deposit_s), tonumber(job.rate)
  if not (job.user and claimed and deposit_s and rate) then return end -- damaged: the cost is unknown
  local spent_s = took_s or math.max(0, now - claimed) / 1000
  if took_s then -- it ran; the claim was not released
    -- Run lengths differ by orders of magnitude, so the mean is taken of their logarithms: the last run counts half,
    -- the value at the time of its claim the other half. (The deposit is no substitute: a time limit cuts it, a
    -- heartbeat raises it.)
    local before_s = tonumber(job.usual_s or call('HGET', P .. 'usual', job.user) or '') -- an adopted run has no claim
    local last_s = math.max(1, took_s)
    call('HSET', P .. 'usual', job.user, string.format('%.0f', before_s and math.sqrt(math.max(1, before_s) * last_s) or last_s))
  end
  charge(job.user, (spent_s - deposit_s) * rate * weight(tonumber(job.claimed_fair_ms) or claimed), share_of(job.user), levels_waited_at())
end

-- Return the drains of a device: origin -> {why, by, at}. Each origin is independent (see ../drains.py). Plain text was
-- written by a version in which only `down` drained.
local function drains_of(device)
  local text = call('HGET', P .. 'drained', device)
  if not text then return {} end
  local ok, drains = pcall(cjson.decode, text)
  if ok and string.sub(text, 1, 1) == '{' then return drains end
  return {down = {why = text}}
end

local function keep_drains(device, drains)
  if next(drains) then call('HSET', P .. 'drained', device, cjson.encode(drains))
  else call('HDEL', P .. 'drained', device) end
end

local function drain(device, origin, why, by, now)
  local drains = drains_of(device)
  drains[origin] = {why = why, by = by, at = string.format('%.0f', now)}
  keep_drains(device, drains)
end

-- Record what the end of a run says about its devices: `well` clears all of them, `against` lists devices on which the
-- run died at once. Three different jobs that die so in a row drain the device, in this same step. Only called for the
-- owner of the run, right before the token becomes stale, so each run counts once.
local DEATHS = 3
local function count_deaths(id, job, now, well, against, why)
  if well == '1' then
    for device in string.gmatch(job.devices or '', '[^,]+') do call('HDEL', P .. 'deaths', device) end
  end
  for device in string.gmatch(against, '[^,]+') do
    local row = cjson.decode(call('HGET', P .. 'deaths', device) or '[]')
    local known = drains_of(device).deaths ~= nil
    for i = 1, #row do known = known or row[i].job == id end -- one job counts once; a job that keeps dying is held later
    if not known then row[#row + 1] = {job = id, why = why} end
    if #row < DEATHS then
      if not known then call('HSET', P .. 'deaths', device, cjson.encode(row)) end
    else
      local told = {}
      for i = 1, #row do told[i] = 'job ' .. row[i].job .. ' (' .. row[i].why .. ')' end
      drain(device, 'deaths', 'runs died one after the other right after their start, and not by their own fault as it '
        .. 'seems: ' .. table.concat(told, ', ') .. '; look at their logs and at nvidia-smi, then: gpuqueue resume '
        .. device, 'gpuqueue', now)
      call('HDEL', P .. 'deaths', device)
    end
  end
end

-- Record the end of a job. Its entry stays readable until the history has the event (settle.lua).
local after_close -- (id, state, now): counts the member of an array; set in array.lua
local function close(id, state, now, event)
  call('HSET', job_key(id), F.state, state, F.ended_ms, string.format('%.0f', now), F.end_event, event, F.reason, '')
  call('ZADD', P .. 'ended', string.format('%.0f', now), id)
  call('PUBLISH', P .. 'end', id)
  if call('EXISTS', key2('dep', id)) == 1 then -- dependent jobs are notified in batches (dependencies.lua)
    call('ZADD', P .. 'timers', 0, 'd:' .. id .. ':' .. (state == 'succeeded' and 'ok' or 'fail'))
  end
  if after_close then after_close(id, state, now) end
end

-- Read a counter; a damaged one restarts at 0. A script that failed on it would stop half-way, or stop every caller.
local function counted(text) return text and #text < 10 and tonumber(string.match(text, '^%d+$')) or 0 end

local STORED, NAMES = F{state, user, priority, shape, mem_bytes, requeue, attempts, losses, token, devices, claimed_ms,
  deposit_s, rate, worker, claimed_fair_ms, reason, not_before_ms, not_before_reason, after, dedupe_key, retries_allowed,
  retry_on, retries, requeues, left, preempted_by, preempt_until_ms, usual_s}
local function read_job(id)
  local values = call('HMGET', job_key(id), unpack(STORED))
  local job = {}
  for i = 1, #NAMES do job[NAMES[i]] = values[i] or nil end
  job.attempts, job.losses = counted(job.attempts), counted(job.losses)
  return job
end

-- Return whether the entry has all that a queue needs. A job that lost one of these fields can only be ended.
local function queueable(job)
  return job.user and job.shape and job.priority and string.match(job.priority, '^[0-3]$') and parse_shape(job.shape)
end

local ACTIVE = {starting = true, running = true, cancelling = true}

-- Return whether this writer still owns the run. Every write after the claim checks this first; a stale writer changes
-- nothing.
local function owns(job, token) return ACTIVE[job.state] and job.token == token end
