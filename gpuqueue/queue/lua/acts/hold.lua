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
if not job.st then return '' end
local owner = theirs(ARGV[2], job.u)
if owner then return 'of ' .. owner end
if job.rm then return 'array' end
if job.st ~= 'queued' then return job.st end
leave(id, job)
out_of_sight(id, job)
call('HSET', job_key(id), 'st', 'held', 'why', 'held')
tell('hold', id, 'held', now_ms(), job.at, job.ls, 'held')
return 'held'
