-- Release a claim that did not become a process: the device had changed, or the host could not start one. Does not
-- count as an attempt.
-- arrow: starting -> queued
-- arrow: running -> queued
-- arrow: cancelling -> cancelled
-- ARGV: id  token  detail
-- returns 1 done | 0 stale
local wrong = expect {'id', 'token', 'text'}
if wrong then return wrong end
local id, token, detail = unpack(ARGV)
local job = read_job(id)
if not owns(job, token) or not queueable(job) then return 0 end
local now = now_ms()
free_devices(id, job, now)
local attempt = job.attempts - 1
local state = job.state == 'cancelling' and 'cancelled' or 'queued'
local event = record_event('release_claim', id, state, now, attempt, job.losses, '', 'token', token, 'detail', detail)
call('HSET', job_key(id), F.state, state, F.attempts, attempt, F.token, '', F.devices, '', F.host, '', F.worker, '')
if state == 'queued' then enqueue(id, job.priority, job.user, job.shape) else close(id, state, now, event) end
wake('room')
return 1
