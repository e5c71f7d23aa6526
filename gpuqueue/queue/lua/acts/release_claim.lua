-- Release a claim that did not become a process: the device had changed, or the host could not start one. Does not
-- count as an attempt. A host where the job's directory or program is missing is excluded for the job. If no host is
-- left, the job is retried later where it may be, else held; releasing it gives all hosts another try.
-- arrow: starting -> queued
-- arrow: starting -> held
-- arrow: running -> queued
-- arrow: running -> held
-- arrow: cancelling -> cancelled
-- ARGV: id  token  detail, and to exclude the host: why  against (devices)  cause (see drains.lua)
-- returns the state after, or '' if stale
local wanted = {'id', 'token', 'text'}
if #ARGV > 3 then wanted = {'id', 'token', 'text', 'text', 'devices', 'text'} end
local wrong = expect(wanted)
if wrong then return wrong end
local id, token, detail, why, against, cause = unpack(ARGV)
local job = read_job(id)
if not owns(job, token) or not queueable(job) then return '' end
local now = now_ms()
local host, array_id = unpack(call('HMGET', job_key(id), F.host, F.array))

local function can_start_somewhere(shape)
  local verdict, doubt = judge(job.user, '0', shape)
  return verdict == 'queued' and (doubt == '' or doubt == 'cpu')
end

-- Exclude the host for the members of the array that are not claimed yet: otherwise each would try it. If no host is
-- left, hold them as well. If the member is retried, each of them has its own tries.
local function exclude_for_the_rest(retried)
  local array = read_array(array_id)
  if not array.left or COUNTERS[array.state] or not queueable(array) then return end
  leave(array_id, array)
  if retried then drop_exclusions(array_id, array)
  else exclude_host(array_id, array, host, why) end
  if retried or array.left == '' or can_start_somewhere(array.shape) then
    update_array(array_id, now)
    return
  end
  local held, because = join(array.held, parse_ranges(array.left)), why_nowhere(array_id)
  call('HSET', job_key(array_id), F.left, '', F.held, held, F.because, because)
  update_array(array_id, now, 'hold', 'left', '', 'held', held, 'because', because)
end

-- -> state, reason, fields of the event
local function exclude()
  exclude_host(id, job, host, why)
  local state, reason, more = 'queued', '', {}
  if not can_start_somewhere(job.shape) then
    local next_state, _, later_ms = after_failure(job, {kind = 'refused'})
    if next_state == 'queued' then
      drop_exclusions(id, job)
      job.not_before_ms, job.not_before_reason = whole(now + later_ms), 'retry'
      call('HSET', job_key(id), F.not_before_ms, job.not_before_ms, F.not_before_reason, 'retry', F.retries, job.retries,
        F.retry_after, job.retry_after)
      reason, more = 'retry', {'begin', job.not_before_ms, 'retries', job.retries}
    else
      local because = why_nowhere(id)
      state, reason, more = 'held', 'cannot_start', {'because', because}
      call('HSET', job_key(id), F.because, because)
    end
  end
  if array_id then exclude_for_the_rest(reason == 'retry') end
  return state, reason, more
end

if why then
  pcall(count_refusal, id, host, why) -- the claim must be released even if these fail
  pcall(count_deaths, id, job, now, '0', against, cause)
end
free_devices(id, job, now)
job.attempts = job.attempts - 1
local state, reason, more = 'queued', '', {}
if job.state == 'cancelling' then state = 'cancelled' elseif why then state, reason, more = exclude() end
local event = record_event('release_claim', id, state, now, job.attempts, job.losses, reason, 'token', token,
  'detail', detail, unpack(more))
call('HSET', job_key(id), F.state, state, F.attempts, job.attempts, F.token, '', F.devices, '', F.host, '', F.worker, '',
  F.reason, reason)
if reason == 'retry' then queue_if_ready(id, job, now)
elseif state == 'queued' then enqueue(id, job.priority, job.user, job.shape)
elseif state == 'held' then record_unqueued(id, job)
else close(id, state, now, event) end
wake('room')
return state
