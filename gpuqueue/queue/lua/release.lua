-- Let a held job be claimed again, at its old place in the order. Its losses are forgiven.
-- arrow: held -> queued
-- ARGV: id
-- returns the state after; that of before if it was not held; '' if unknown
local wrong = expect {'id'}
if wrong then return wrong end
local id = ARGV[1]
local job = read_job(id)
if not job.st then return '' end
if job.st ~= 'held' or not queueable(job) then return job.st end
call('HSET', job_key(id), 'st', 'queued', 'why', '', 'ls', 0)
enqueue(id, job.lv, job.u, job.sh)
tell('release', id, 'queued', now_ms(), job.at, 0, '')
ring('work')
return 'queued'
