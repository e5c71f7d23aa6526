-- Heartbeat of a worker for one device and its runs: renews the leases of the runs.
-- ARGV: host  device  total  headroom  external (bytes of external processes)  slots  pool  kind  lease_ms  machine (see
--   machines.lua), then for each run: id  token  n, and n times: device  observed bytes
-- returns JSON
--   taken:    the id of another machine that has this host name; all else is missing then, and nothing is changed
--   epoch:    of the store
--   verdicts: token -> 1 continue | 0 not owned any more | -1 cancelled
--   others:   leases on this device that were not named: job_id, token, lease_bytes, observed_bytes, leads (whether this
--     device is the run's first)
--   preempted: token -> {by: the job it is preempted for, left_ms: the time that it has left, negative if overdue}
--   limits:   token -> the time limit in ms, of the runs whose limit was extended
--   drained:  the drains of the device and its calendar reservations (JSON), if any
local wrong = misfit {'host', 'device', 'bytes', 'bytes', 'bytes', 'count', 'pool', 'word', 'ms', 'by'}
local at = 11
while not wrong and at <= #ARGV do
  wrong = misfit({'id', 'token', 'count'}, at)
  for k = 1, wrong and 0 or math.min(tonumber(ARGV[at + 2]), #ARGV) do
    wrong = wrong or misfit({'device', 'bytes'}, at + 1 + 2 * k)
  end
  at = at + 3 + 2 * (tonumber(ARGV[at + 2] or '') or 0)
end
if wrong then return wrong end
local host, device, total, headroom, external, slots, pool, kind, lease_ms, machine = unpack(ARGV, 1, 10)
local now = now_ms()
local taken = taken_by(host, machine, lease_ms, now)
if taken then return cjson.encode({taken = taken}) end
if kind == 'cpu-auto' and has_served_gpus(host, now) then kind = 'cpu-lost' end
call('SADD', P .. 'hosts', host)
if is_gpu(kind) then call('SADD', P .. 'gpu_hosts', host) end
call('HSET', key2('dev', host), device,
  table.concat({total, headroom, external, whole(now), slots, pool, kind}, ':'))

-- Charge a run that lasts longer than its deposit. Otherwise a user with runs of days would be charged for ten minutes
-- until they end. The time really taken is settled at the end (leases.lua).
local function charge_on(id, job)
  local claimed, deposit_s, rate = tonumber(job.claimed_ms), tonumber(job.deposit_s), tonumber(job.rate)
  if not (job.user and claimed and deposit_s and rate) then return end
  local lasted_s = (now - claimed) / 1000
  if lasted_s <= deposit_s then return end
  -- The clock of fair share stops while the host is suspended, and the run with it: charge no more time than that.
  lasted_s = math.min(lasted_s, (fair_ms(now) - (tonumber(job.claimed_fair_ms) or claimed)) / 1000)
  if lasted_s <= deposit_s then return end
  local ahead_s = math.ceil(lasted_s + math.min(lasted_s, DEPOSIT_S))
  call('HSET', job_key(id), F.deposit_s, ahead_s)
  local more = (ahead_s - deposit_s) * rate * weight(tonumber(job.claimed_fair_ms) or claimed)
  charge(job.user, more, share_of(job.user), priorities_waited_at())
end

-- While a calendar reservation holds, preempt the runs of others whose jobs may run again. Forget those that are over.
local function apply_calendar()
  local drains = drains_of(device)
  if type(drains.calendar) ~= 'table' then return end
  local _, calendar = closing_of(call('HGET', P .. 'drained', device), now)
  if #drains.calendar > #(calendar or {}) then
    drains.calendar = calendar
    write_drains(device, drains)
  end
  local held = calendar and calendar[1]
  for _, id in ipairs(held and tonumber(held.from) <= now and call('HKEYS', key2('dl', device)) or {}) do
    local job = read_job(id)
    if job.state == 'running' and not job.preempted_by and job.requeue == '1' and not is_holder(held, job.user) then
      preempt_run(id, job, '0', now, tonumber(held.grace) or 0)
    end
  end
end
if call('HEXISTS', P .. 'drained', device) == 1 then apply_calendar() end

local verdicts, named, preempted, limits = {}, {}, {}, {}
local i = 11
while i <= #ARGV do
  local id, token, n = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local job = read_job(id)
  if owns(job, token) then
    call('ZADD', P .. 'leases', whole(now + lease_ms), id)
    for k = 0, n - 1 do
      local name, observed = ARGV[i + 3 + 2 * k], ARGV[i + 4 + 2 * k]
      local lease = call('HGET', key2('dl', name), id)
      if lease then
        local bytes, ends = string.match(lease, '^(%d+):%d+:(.+)$')
        if bytes then call('HSET', key2('dl', name), id, bytes .. ':' .. observed .. ':' .. ends) end
      end
    end
    verdicts[token] = job.state == 'cancelling' and -1 or 1
    named[id] = true
    limits[token] = job.time_limit_ms
    charge_on(id, job)
    if job.preempted_by and job.state == 'running' then
      preempted[token] = {by = job.preempted_by, left_ms = (tonumber(job.preempt_until_ms or '') or now) - now}
    end
  else
    verdicts[token] = 0
  end
  i = i + 3 + 2 * n
end

local others = {}
local leases = call('HGETALL', key2('dl', device))
for k = 1, #leases, 2 do
  local id = leases[k]
  if not named[id] then
    local job = read_job(id)
    local bytes, observed = string.match(leases[k + 1], '^(%d+):(%d+)')
    others[#others + 1] = {job_id = id, token = job.token or '', lease_bytes = bytes or '0', observed_bytes = observed or '0',
      leads = string.match(job.devices or '', '^[^,]+') == device}
  end
end
return cjson.encode({epoch = call('GET', P .. 'epoch'), verdicts = verdicts, others = others, preempted = preempted, limits = limits,
  drained = call('HGET', P .. 'drained', device) or nil})
