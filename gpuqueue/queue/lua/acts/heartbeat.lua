-- Heartbeat of a worker for one device and its runs: renews the leases of the runs.
-- ARGV: host  device  total  headroom  foreign (bytes of external processes)  slots  pool  kind  lease_ms, then for
--   each run: id  token  n, and n times: device  observed bytes
-- returns {verdicts, others, drained, epoch, places}
--   verdicts: for each run 1 continue | 0 not owned any more | -1 cancelled
--   others:   leases on this device that were not named: id, token, lease, observed, 1 if this device is the run's
--     first
--   places:   for each preempted run: token, the job it is preempted for, ms that it has left (negative if overdue)
--   drained:  the drains of the device (JSON), '' if there are none
local wrong = misfit {'host', 'device', 'bytes', 'bytes', 'bytes', 'count', 'pool', 'word', 'ms'}
local at = 10
while not wrong and at <= #ARGV do
  wrong = misfit({'id', 'token', 'count'}, at)
  for k = 1, wrong and 0 or math.min(tonumber(ARGV[at + 2]), #ARGV) do
    wrong = wrong or misfit({'device', 'bytes'}, at + 1 + 2 * k)
  end
  at = at + 3 + 2 * (tonumber(ARGV[at + 2] or '') or 0)
end
if wrong then return wrong end
local host, device, total, headroom, foreign, slots, pool, kind, lease_ms = unpack(ARGV, 1, 9)
local now = now_ms()
call('SADD', P .. 'hosts', host)
call('HSET', key2('dev', host), device,
  table.concat({total, headroom, foreign, string.format('%.0f', now), slots, pool, kind}, ':'))

-- Charge a run that lasts longer than its deposit. Otherwise a user with runs of days would be charged for ten minutes
-- until they end. The time really taken is settled at the end (state.lua).
local function charge_on(id, job)
  local claimed, deposit_s, rate = tonumber(job.claimed_ms), tonumber(job.deposit_s), tonumber(job.rate)
  if not (job.user and claimed and deposit_s and rate) then return end
  local lasted_s = (now - claimed) / 1000
  if lasted_s <= deposit_s then return end
  local ahead_s = math.ceil(lasted_s + math.min(lasted_s, DEPOSIT_S))
  call('HSET', job_key(id), F.deposit_s, ahead_s)
  local more = (ahead_s - deposit_s) * rate * weight(tonumber(job.claimed_fair_ms) or claimed)
  charge(job.user, more, share_of(job.user), levels_waited_at())
end

local verdicts, named, places = {}, {}, {}
local i = 10
while i <= #ARGV do
  local id, token, n = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local job = read_job(id)
  if owns(job, token) then
    call('ZADD', P .. 'leases', string.format('%.0f', now + lease_ms), id)
    for k = 0, n - 1 do
      local name, observed = ARGV[i + 3 + 2 * k], ARGV[i + 4 + 2 * k]
      local lease = call('HGET', key2('dl', name), id)
      if lease then
        local bytes, ends = string.match(lease, '^(%d+):%d+:(.+)$')
        if bytes then call('HSET', key2('dl', name), id, bytes .. ':' .. observed .. ':' .. ends) end
      end
    end
    verdicts[#verdicts + 1] = job.state == 'cancelling' and -1 or 1
    named[id] = true
    charge_on(id, job)
    if job.preempted_by and job.state == 'running' then
      local left_ms = string.format('%.0f', (tonumber(job.preempt_until_ms or '') or now) - now)
      for _, value in ipairs({token, job.preempted_by, left_ms}) do places[#places + 1] = value end
    end
  else
    verdicts[#verdicts + 1] = 0
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
    local leads = string.match(job.devices or '', '^[^,]+') == device and '1' or '0'
    for _, value in ipairs({id, job.token or '', bytes or '0', observed or '0', leads}) do others[#others + 1] = value end
  end
end
return {verdicts, others, call('HGET', P .. 'drained', device) or '', call('GET', P .. 'epoch'), places}
