-- Record the end of a run whose processes are gone, and free its memory. The job ends with it, or is queued or held for
-- another run: if the worker says so, if it lacked device memory and may have more (memory_retry.lua), if it may be
-- retried, or if the run asked to be requeued (exit code 75). A job that is being cancelled or must not run twice never
-- runs again.
-- arrow: starting -> succeeded
-- arrow: starting -> failed
-- arrow: starting -> queued
-- arrow: starting -> held
-- arrow: running -> succeeded
-- arrow: running -> failed
-- arrow: running -> queued
-- arrow: running -> held
-- arrow: cancelling -> cancelled
-- arrow: cancelling -> succeeded
-- arrow: cancelling -> failed
-- ARGV: id  token  state (an end, or queued)  ended (JSON for the history)  well (0|1)  against (devices)  why, and for
--   queued: reason  later_ms (0: at once)
-- returns the state after, or '' if stale
local wanted = {'id', 'token', 'word', 'text', 'flag', 'devices', 'text'}
if ARGV[3] == 'queued' then wanted[8], wanted[9] = 'word', 'later' end
local wrong = expect(wanted)
local STATES = {succeeded = true, failed = true, cancelled = true, queued = true}
if not wrong and not STATES[ARGV[3]] then wrong = redis.error_reply('BADARGS argument 3 is no end') end
if wrong then return wrong end
local id, token, state, ended, well, against, why, reason, later_ms = unpack(ARGV, 1, 9)
local job = read_job(id)
if not owns(job, token) then return '' end
local now = now_ms()
pcall(count_deaths, id, job, now, well, against, why) -- the end must be recorded even if this fails
local ok, report = pcall(cjson.decode, ended)
if not ok or type(report) ~= 'table' then report = {} end
local shortage = type(report.shortage) == 'table' and report.shortage
local had = shortage and allocated_to(id, job.devices or '')
local took_s = tonumber(report.duration_s)
free_devices(id, job, now, took_s and took_s >= 0 and took_s < 1e9 and took_s or nil)
later_ms = tonumber(later_ms or 0)
local more, has_memory = {}, false
if state == 'queued' then
  if job.state == 'cancelling' then state = 'cancelled'
  elseif job.requeue ~= '1' or not queueable(job) then state = 'failed' end
elseif state == 'failed' and job.state ~= 'cancelling' and type(report.ending) == 'table' then
  if shortage then
    local done, granted, fields = pcall(memory_retry, id, job, had, shortage) -- as above
    if done then has_memory, more = granted, fields end
  end
  if has_memory then state, reason, later_ms = 'queued', 'out_of_memory', 0
  else state, reason, later_ms = after_failure(job, report.ending, report.is_long == true) end
end
if state == 'queued' or state == 'held' then
  queue_again(id, job, now, state, reason, later_ms, ended, more)
else
  local event = record_event('finish', id, state, now, job.attempts, job.losses, '', 'token', token, 'ended', ended, unpack(more))
  close(id, state, now, event)
  queue_due_if_any(now)
end
wake('room')
return state
