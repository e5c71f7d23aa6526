-- Confirm that a claimed job may start now. Called right before its process is spawned, by the worker that claimed it.
-- arrow: starting -> running
-- ARGV: id  token  lease_ms  started (JSON for the history)
-- returns 1 yes | 0 the claim is stale, or older than a loss of data | -1 the job was cancelled meanwhile
local wrong = expect {'id', 'token', 'ms', 'text'}
if wrong then return wrong end
local id, token, lease_ms, started = unpack(ARGV)
local job = read_job(id)
if not owns(job, token) then return 0 end
if job.state == 'cancelling' then return -1 end
local now = now_ms()
if job.state == 'running' then -- the request was sent twice
  call('ZADD', P .. 'leases', whole(now + lease_ms), id)
  return 1
end
-- The history may have missed that this claim was released and that a newer run exists. As with claims: see
-- rebuild_finish.lua.
if pausing(now) then return 0 end
call('HSET', job_key(id), F.state, 'running', F.started_ms, whole(now), F.start_report, started)
call('ZADD', P .. 'leases', whole(now + lease_ms), id)
record_event('started', id, 'running', now, job.attempts, job.losses, '', 'token', token, 'started', started)
return 1
