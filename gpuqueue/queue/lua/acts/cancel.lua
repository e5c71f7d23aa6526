-- Cancel a job: at once if it waits, else through its worker.
-- arrow: queued -> cancelled
-- arrow: held -> cancelled
-- arrow: starting -> cancelling
-- arrow: running -> cancelling
-- ARGV: id  caller ('': the queue itself)
-- returns the state after; the state before if the job had ended, with 'stands ' in front if that is cancelled; '' if
--   unknown;
--       | 'array' if it is an array (see edit_members.lua)
--       | 'of ' and the owner: the caller may not cancel it (see authorize.lua)
local wrong = expect {'id', 'by'}
if wrong then return wrong end
local id = ARGV[1]
local job = read_job(id)
if not job.st then return '' end
local owner = theirs(ARGV[2], job.u)
if owner then return 'of ' .. owner end
if job.rm then return 'array' end
local now = now_ms()
if job.st == 'queued' or job.st == 'held' then
  leave(id, job, true)
  close(id, 'cancelled', now, tell('cancel', id, 'cancelled', now, job.at, job.ls, ''))
  let_in_if_due(now)
  return 'cancelled'
elseif job.st == 'starting' or job.st == 'running' then
  call('HSET', job_key(id), 'st', 'cancelling')
  tell('cancel', id, 'cancelling', now, job.at, job.ls, '')
  call('PUBLISH', P .. 'ctl', 'cancel:' .. id .. ':' .. job.tok)
  return 'cancelling'
end
return (job.st == 'cancelled' and 'stands ' or '') .. job.st
