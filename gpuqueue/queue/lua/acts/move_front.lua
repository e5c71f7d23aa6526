-- Move a waiting job before all other jobs of its user, or back to its position by arrival. Its priority and its
-- reservation stay.
-- ARGV: id  1 to the front, 0 back  caller ('': the queue itself)
-- returns {its state} | {'unchanged', state}: the job does not wait | {} unknown
--       | {'of', the owner}: the caller may not move it (see authorize.lua)
local wrong = expect {'id', 'flag', 'by'}
if wrong then return wrong end
local id, to_front, by = unpack(ARGV)
local job = read_job(id)
if not job.state then return {} end
local owner = theirs(by, job.user)
if owner then return {'of', owner} end
if (job.state ~= 'queued' and job.state ~= 'held') or not queueable(job) then return {'unchanged', job.state} end
local front = to_front == '1' and whole(call('HINCRBY', P .. 'meta', 'front', 1)) or nil
move_to(id, job, front)
record_event('move', id, job.state, now_ms(), job.attempts, job.losses, job.reason or '', 'front', front or '')
wake('work')
return {job.state}
