-- Put a job that waits before all others of its user, or back where it stood by its arrival. Its level stays, and so does
-- what is kept for it.
-- ARGV: id  1 to the front, 0 back  who asks ('': the queue itself)
-- returns {its state} | {'stands', state}: it does not wait | {} unknown
--       | {'of', the owner}: it is not for them to do (see authorize.lua)
local wrong = expect {'id', 'flag', 'by'}
if wrong then return wrong end
local id, to_front, by = unpack(ARGV)
local job = read_job(id)
if not job.st then return {} end
local owner = theirs(by, job.u)
if owner then return {'of', owner} end
if (job.st ~= 'queued' and job.st ~= 'held') or not queueable(job) then return {'stands', job.st} end
local front = to_front == '1' and string.format('%.0f', call('HINCRBY', P .. 'meta', 'front', 1)) or nil
move_to(id, job, front)
tell('move', id, job.st, now_ms(), job.at, job.ls, job.why or '', 'front', front or '')
ring('work')
return {job.st}
