-- Release a held job: it may be claimed again, at its old position, once nothing else delays it. Its losses and
-- requeues are reset, and hosts that could not start it get another try.
-- arrow: held -> queued
-- ARGV: id  caller ('': the queue itself)
-- returns the state after; 'unchanged ' and its state if the job was not held; '' if unknown; 'array' if it is an array
--   (see edit_members.lua)
--       | 'of ' and the owner: the caller may not release it (see authorize.lua)
local wrong = expect {'id', 'by'}
if wrong then return wrong end
local id = ARGV[1]
local job = read_job(id)
if not job.state then return '' end
local owner = theirs(ARGV[2], job.user)
if owner then return 'of ' .. owner end
if job.left then return 'array' end
if job.state ~= 'held' or not queueable(job) then return 'unchanged ' .. job.state end
local now = now_ms()
drop_exclusions(id, job)
local reason = queue_if_ready(id, job, now)
call('HSET', job_key(id), F.state, 'queued', F.reason, reason, F.losses, 0, F.requeues, 0,
  F.ready_since_ms, whole(now))
if job.reason == 'cannot_start' then call('HDEL', job_key(id), F.because) end
record_event('release', id, 'queued', now, job.attempts, 0, reason, 'requeues', 0,
  unpack(job.reason == 'cannot_start' and {'because', ''} or {}))
wake('work')
return 'queued'
