-- Record the outcome of a notification command that ran at the end of a job; only the worker that ran it knows the
-- outcome. The job has ended and the store may have forgotten it, so only the history gets the record. No state
-- changes.
-- ARGV: id  state  attempt  the notification's number among the job's  outcome (sent, given_up, not_needed)  trouble
-- returns 1 done | 0 no such job has ended
local ENDED = {succeeded = true, failed = true, cancelled = true, lost = true}
local wrong = expect {'id', 'reason', 'count', 'count', 'reason', 'text'}
if wrong then return wrong end
local id, state, attempt, number, outcome, trouble = unpack(ARGV)
local job = read_job(id)
if not ENDED[job.state or state] then return 0 end
tell('told', id, job.state or state, now_ms(), counted(attempt), job.losses or 0, '', 'number', number, 'outcome', outcome,
  'trouble', trouble)
return 1
