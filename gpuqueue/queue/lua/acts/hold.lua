-- Hold a waiting job: no device claims it.
-- arrow: queued -> held
-- ARGV: id  caller ('': the queue itself)
-- returns the state after; the state before if the job could not be held; '' if unknown; 'array' if it is an array (see
--   edit_members.lua)
--       | 'of ' and the owner: the caller may not hold it (see authorize.lua)
local wrong = expect {'id', 'by'}
if wrong then return wrong end
local id = ARGV[1]
local job = read_job(id)
if not job.state then return '' end
local owner = theirs(ARGV[2], job.user)
if owner then return 'of ' .. owner end
if job.left then return 'array' end
if job.state ~= 'queued' then return job.state end
leave(id, job)
record_unqueued(id, job)
call('HSET', job_key(id), F.state, 'held', F.reason, 'held')
record_event('hold', id, 'held', now_ms(), job.attempts, job.losses, 'held')
return 'held'
