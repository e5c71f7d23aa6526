-- Keep a waiting job from being claimed.
-- arrow: queued -> held
-- ARGV: id  who asks ('': the queue itself)
-- returns the state after; that of before if it could not be held; '' if unknown; 'array' if it is one (see edit_members.lua)
--       | 'of ' and the owner: it is not for them to do (see authorize.lua)
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
