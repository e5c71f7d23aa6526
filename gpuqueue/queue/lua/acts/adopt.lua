-- Take over a live run that a worker offers to a store that may have lost it. The run continues with its old token.
-- The store accepts only a run that is newer than what it knows of the job: the token's attempt must be above the
-- job's. An unknown job must come from the lost store: its id is above the last id of the history, and was not assigned
-- since.
-- arrow: starting -> running
-- arrow: queued -> running
-- arrow: held -> running
-- arrow: none -> running
-- ARGV: id  token  lease_ms  host  worker  devices (comma-separated)  claimed ('': unknown)  rate  started (JSON for
--   the history), and of its job: spec ('': unknown)  user  priority  mem  shape  requeue (0|1)  how it waits (see
--   dependencies.lua)
-- returns the job's state if this is its run, ended or not; 'failed' if the run has ended and its job was queued again;
--   '' if this is not its run
local wanted = {'id', 'token', 'ms', 'host', 'worker', 'gang', 'passed', 'rate', 'text', 'text'}
if (ARGV[10] or '') ~= '' then
  for _, kind in ipairs({'user', 'priority', 'size', 'shape', 'flag', 'text'}) do wanted[#wanted + 1] = kind end
end
local wrong = expect(wanted)
local attempt = string.match(ARGV[2] or '', '^(%d+)%.')
if not wrong and #attempt > 9 then wrong = redis.error_reply('BADARGS argument 2 is no token') end
local waits
if not wrong and #ARGV > 10 then waits, wrong = waits_of(16) end
if wrong then return wrong end
local id, token, lease_ms, host, worker, devices, claimed, rate, started, spec = unpack(ARGV, 1, 10)
local job = read_job(id)
local now = now_ms()
if claimed == '' then claimed = whole(now) end
if job.token == token then
  if not ACTIVE[job.state] then return job.state end
  local was_parked = tonumber(call('ZSCORE', P .. 'leases', id) or 0) > now + lease_ms
  call('ZADD', P .. 'leases', whole(now + lease_ms), id)
  if job.state == 'starting' then
    job.state = 'running'
    call('HSET', job_key(id), F.state, job.state, F.started_ms, claimed, F.start_report, started)
  elseif was_parked then -- the history must learn that the run is no longer parked
    claimed = call('HGET', job_key(id), F.started_ms) or claimed
  else
    return job.state
  end
  record_event('adopt', id, job.state, now, job.attempts, job.losses, '', 'token', token, 'claimed', claimed, 'started', started)
  return job.state
end

if job.state and call('HGET', job_key(id), F.previous_token) == token then return 'failed' end -- the end of this run is recorded

local fields = {'token', token, 'claimed', claimed, 'started', started, 'host', host, 'worker', worker, 'devices', devices}
if job.state == 'queued' or job.state == 'held' then
  if tonumber(attempt) <= job.attempts or not queueable(job) then return '' end
  if spec ~= '' and not is_spec_of(spec, id) then return '' end -- another job that got the same id
  leave(id, job, true)
  job.mem_bytes = string.match(job.mem_bytes or '', '^%d+$') or whole((parse_shape(job.shape))) -- as in claim_take.lua
elseif job.state then
  return '' -- the job has another run, or has ended
else
  local opening = call('HMGET', P .. 'meta', 'last', 'floor')
  local last, floor = tonumber(opening[1] or 0), tonumber(opening[2] or 0)
  local given, number = tonumber(call('GET', P .. 'seq') or 0), tonumber(id)
  if spec == '' or number > 2 ^ 52 then return '' end -- later ids must stay exact in a double
  local left = still_waits(spec) -- a member is identified by its array, whatever its id
  if left == false or (left == nil and (number <= last or (number > floor and number <= given))) then return '' end
  if call('SADD', P .. 'late', id) == 0 then return '' end -- it was adopted before and has ended since
  if number > floor and not left then call('HSET', P .. 'meta', 'floor', id) end
  if number > given then call('SET', P .. 'seq', id) end
  job = {user = ARGV[11], priority = ARGV[12], mem_bytes = ARGV[13], shape = ARGV[14], losses = 0}
  call('HSET', job_key(id), F.user, job.user, F.priority, job.priority, F.mem_bytes, job.mem_bytes,
    F.shape, job.shape, F.requeue, ARGV[15], F.losses, 0,
    F.submitted_ms, claimed)
  waits.begin = nil
  store_waits(id, job, waits)
  call('SET', key2('s', id), spec)
  call('ZADD', P .. 'live', id, id)
  restore_member(id, spec, now)
  for _, word in ipairs({'spec', spec}) do fields[#fields + 1] = word end
  local _, _, _, _, wanted_kind = parse_shape(job.shape)
  if wanted_kind == 'gpu' then for _, word in ipairs({'meant', 'gpu'}) do fields[#fields + 1] = word end end
end
-- of an earlier run; how this run came to its start is lost
call('HDEL', job_key(id), F.start_kind, F.preempted_by, F.preempt_until_ms)
call('HSET', job_key(id), F.state, 'running', F.attempts, attempt, F.started_ms, claimed, F.start_report, started,
  F.reason, '')
local held = hold_devices(id, {token = token, host = host, worker = worker, devices = devices, claimed_ms = claimed, rate = rate,
  spec = spec},
  job.mem_bytes, job.shape, now,
  now + lease_ms)
record_event('adopt', id, 'running', now, attempt, job.losses, '', 'lease', held, unpack(fields))
return 'running'
