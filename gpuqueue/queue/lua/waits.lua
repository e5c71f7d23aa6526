-- What may not start yet. Such a job is queued, with a reason, and stands in no queue: no claim ever meets it, however
-- many there are. Its hour stands in `timers`. Goes before every act that queues a job or takes it out.
--
-- Fields of j:<id>:  nb not before (ms), and nw why: begin, retry     since since when it may start (ms), once it waited
--   pt, pe token of the run that ended last and whose job was queued again, and the outbox id of that event
local LET_IN = 50 -- jobs that one script lets into the queue: the rest is for the next one

local function moment(text) return tonumber(string.match(text or '', '^%d+$') and #text < 16 and text or 0) end

-- Queue a job where it may stand now. -> its reason: '' in the queue, else why it stands aside
local function stand(id, job, now)
  if moment(job.nb) > now then
    call('ZADD', P .. 'timers', job.nb, id)
    return string.match(job.nw or '', '^[%l_]+$') or 'begin'
  end
  if job.nb then -- its place is its id's; what it waited for does not count as waiting (age.lua, reserve.lua)
    call('HDEL', job_key(id), 'nb', 'nw')
    call('HSET', job_key(id), 'since', string.format('%.0f', now))
  end
  enqueue(id, job.lv, job.u, job.sh)
  return ''
end

-- Take a waiting job from wherever it stands.
local function leave(id, job)
  if job.nb then call('ZREM', P .. 'timers', id) end
  dequeue(id, job.lv, job.u, job.sh)
end

-- Let in what is due. -> how many
local function let_in(now)
  local due = call('ZRANGE', P .. 'timers', '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, LET_IN)
  for i = 1, #due do
    local id = due[i]
    call('ZREM', P .. 'timers', id)
    local job = read_job(id)
    if job.st == 'queued' and queueable(job) then
      local reason = stand(id, job, now)
      call('HSET', job_key(id), 'why', reason)
      if reason == '' then tell('ready', id, 'queued', now, job.at, job.ls, '') end
    end
  end
  if #due > 0 then ring('work') end
  return #due
end

-- The same for a claim, to which it must cost nothing.
local function let_in_if_due(now)
  local first = call('ZRANGE', P .. 'timers', 0, 0, 'WITHSCORES')
  if first[2] and tonumber(first[2]) <= now then let_in(now) end
end

-- A run has ended, and its job waits again: it keeps its attempts and counts as no loss. `later_ms` from now at the
-- earliest, for that reason. The book must have the run's end before its worker forgets it: hence pt and pe.
local function queue_again(id, job, now, reason, later_ms, ended)
  job.nb, job.nw = nil, nil
  if later_ms > 0 then
    job.nb, job.nw = string.format('%.0f', now + later_ms), reason
    call('HSET', job_key(id), 'nb', job.nb, 'nw', reason)
  end
  local aside = stand(id, job, now)
  local event = tell('finish', id, 'queued', now, job.at, job.ls, aside, 'token', job.tok, 'ended', ended,
    'again', reason, 'begin', job.nb or '')
  call('HSET', job_key(id), 'st', 'queued', 'why', aside, 'pt', job.tok, 'pe', event, 'tok', '', 'devs', '', 'host', '',
    'w', '')
end
