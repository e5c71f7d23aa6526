-- Restore a job that has not ended, as recorded in the history. A run keeps its token and gets a new lease.
-- arrow: none -> queued
-- arrow: none -> held
-- arrow: none -> starting
-- arrow: none -> running
-- arrow: none -> cancelling
-- ARGV: new epoch  lease_ms  id  state  reason  user  priority  mem  shape  requeue (0|1)  spec  submitted  attempt
--   losses  how it waits (see dependencies.lua), and of a run: token  host  worker  devices (comma-separated)  claimed
--   began  rate  start_report  parked until
-- returns 1 restored | 0 it was there already | -1 this rebuild is over
local wanted = {'nonce', 'ms', 'id', 'word', 'reason', 'user', 'priority', 'size', 'shape', 'flag', 'text', 'ms', 'count',
  'count', 'text'}
if #ARGV > #wanted then
  for _, kind in ipairs({'token', 'host', 'worker', 'gang', 'ms', 'ms', 'rate', 'text', 'ms'}) do wanted[#wanted + 1] = kind end
end
local wrong = expect(wanted)
local STATES = #ARGV == 15 and {queued = true, held = true} or ACTIVE
if not wrong and not STATES[ARGV[4]] then wrong = redis.error_reply('BADARGS argument 4 is no state of such a job') end
local waits
if not wrong then waits, wrong = waits_of(15) end
if wrong then return wrong end
local epoch, lease_ms, id, state, reason, user, priority, mem, shape, requeue, spec, submitted, at, ls = unpack(ARGV, 1, 14)
if call('EXISTS', P .. 'epoch') == 1 or call('GET', P .. 'rebuilding') ~= epoch then return -1 end
if call('EXISTS', job_key(id)) == 1 then return 0 end
local now = now_ms()
call('HSET', job_key(id), F.state, state, F.user, user, F.priority, priority, F.shape, shape, F.mem_bytes, mem,
  F.requeue, requeue, F.attempts, at, F.losses, ls,
  F.submitted_ms, submitted, F.reason, reason)
call('SET', key2('s', id), spec)
call('ZADD', P .. 'live', id, id)
local job = {user = user, priority = priority, shape = shape}
store_waits(id, job, waits)
restore(id, spec, now, job)
if #ARGV == 15 then
  local depends_on = dependencies(waits.after)
  set_dependencies(id, job, depends_on)
  for _, each in ipairs(depends_on) do
    if each.condition == 'corr' and array_of(spec) then begin_follow(id, spec, parse_ranges(waits.good)) end
  end
  if state == 'queued' then
    reason = queue_if_ready(id, job, now)
    call('HSET', job_key(id), F.reason, reason)
  else
    record_unqueued(id, job)
  end
  record_event('restore', id, state, now, at, ls, reason)
  return 1
end
local token, host, worker, devices, claimed, began, rate, start_report, parked = unpack(ARGV, 16, 24)
local held = wants_alone(shape) and string.match(start_report, '"lease_bytes":([1-9]%d*)') -- no worker has announced a device yet
if held and #held > 15 then held = nil end
hold_devices(id, {token = token, host = host, worker = worker, devices = devices, claimed_ms = claimed, rate = rate,
  spec = spec},
  held or mem, shape, now,
  math.max(now + lease_ms, tonumber(parked)))
if state ~= 'starting' then call('HSET', job_key(id), F.started_ms, began, F.start_report, start_report) end
record_event('restore', id, state, now, at, ls, reason, 'token', token)
return 1
