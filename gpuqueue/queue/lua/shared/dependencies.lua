-- Jobs that may not start yet. Such a job is queued, has a wait reason and is in no queue, so no claim ever reads it,
-- however many there are. A begin time is in `timers`; a dependency is in `dep:<id>` of each job it waits for. Goes
-- before every act that queues a job, removes one or ends one.
--
-- An array can follow another one member by member: `id:corr`. `corr:<id>` has the arrays that follow an array, and the
-- field `pending` of a follower the indexes that may not start yet (see array.lua).
local waits_of, dependencies, store_waits, job_with_key, ends_of, set_dependencies, drop_dependencies, queue_if_ready, leave, queue_due,
  queue_due_if_any, queue_again, after_failure, lose, moment, record_unqueued, forget_unqueued
local any_may_start, members_known -- set in array.lua
do
local LET_IN = 25 -- jobs that one script queues or ends; the rest is for the next script
local REQUEUES, REQUEUE_MS, EX_TEMPFAIL = 5, 5000, 75 -- sysexits.h
local RETRY_MS, LONGEST_MS = 10000, 3600000 -- pause before the first retry (it doubles), and the longest pause

function moment(text) return tonumber(string.match(text or '', '^%d+$') and #text < 16 and text or 0) end

-- Parse how a request waits: one argument of words such as after=12:ok begin=1700000000000 (see ../requests.py).
-- -> a table, or nil and the error
local WORDS = {
  after = '^[%d:a-z,]+$', begin = '^%d+$', hold = '^1$', key = '^[%w_.@+:-]+$', times = '^%d%d?%d?$', on = '^[%l_,]+$',
  retries = '^%d%d?%d?$', requeues = '^%d%d?%d?$', granted = '^%d%d?%d?%d?%d?%d?$',
  why = '^[%l_]+$', memretries = '^%d%d?%d?$',
  good = '^[%d,:-]+$', bad = '^[%d,:-]+$', -- members of the followed array that have ended, as the history knows
}
local LONGEST = 2 ^ 24 -- both of them for a million scattered members
local ENDED = {succeeded = 'ok', failed = 'fail', cancelled = 'fail', lost = 'fail'} -- as dependent jobs see it
local CONDITIONS = {ok = true, any = true, fail = true, corr = true}
function waits_of(place)
  local found, wrong = {}, redis.error_reply('BADARGS argument ' .. place .. ' is no way to wait')
  local text = ARGV[place] or ''
  if #text > LONGEST then return nil, wrong end
  for word in string.gmatch(text, '[^ ]+') do
    local name, value = string.match(word, '^(%l+)=(.+)$')
    if not name or not WORDS[name] or not string.find(value, WORDS[name]) or found[name] then return nil, wrong end
    found[name] = value
  end
  if found.begin and #found.begin > 15 then return nil, wrong end
  for item in string.gmatch(found.after or '', '[^,]+') do
    local id, condition, how = string.match(item, '^([1-9]%d*):(%l+):?(%l*)$')
    if not id or #id > 15 or not CONDITIONS[condition] or not (how == '' or how == 'ok' or how == 'fail') then
      return nil, wrong
    end
  end
  return found
end

function dependencies(text) -- -> {{id, condition, how it ended if the caller knows, else ''}, ...}
  local found = {}
  for id, condition, how in string.gmatch(text or '', '(%d+):(%l+):?(%l*)') do
    found[#found + 1] = {id = id, condition = condition, how = how}
  end
  return found
end

local function is_met(condition, how) return condition == 'any' or condition == how end

-- Store how a request waits, in the job's entry and in `job`.
local STORED, NAMES = F{not_before_ms, not_before_reason, dedupe_key, retries_allowed, retry_on, retries, requeues, retry_after}
function store_waits(id, job, waits)
  local stored = {not_before_ms = waits.begin, not_before_reason = waits.begin and (waits.why or 'begin'), dedupe_key = waits.key,
    retries_allowed = waits.times, retry_on = waits.on, retries = waits.retries, requeues = waits.requeues,
    retry_after = waits.granted}
  for i, name in ipairs(NAMES) do -- mostly none is set: must be cheap
    if stored[name] then call('HSET', job_key(id), STORED[i], stored[name])
    elseif job[name] then call('HDEL', job_key(id), STORED[i]) end
    job[name] = stored[name]
  end
  if waits.memretries then call('HSET', job_key(id), F.mem_retries, waits.memretries) end -- an edit keeps it
  if job.dedupe_key and job.user then call('HSET', P .. 'keys', job.user .. ' ' .. job.dedupe_key, id) end
end

-- Return the waiting or running job of this user with this dedupe key, or nil.
function job_with_key(user, key)
  local id = call('HGET', P .. 'keys', user .. ' ' .. key)
  local state = id and call('HGET', job_key(id), F.state)
  return state and not ENDED[state] and id or nil
end

-- Return the requested dependencies without those that are met. -> {dependency, ...} | nil, the reply
function ends_of(text)
  local wanted, unknown = {}, {'unknown'}
  for _, each in ipairs(dependencies(text)) do
    local state, array = unpack(call('HMGET', job_key(each.id), F.state, F.array))
    local how = each.how
    if array then return nil, {'member', each.id, array} end
    if state then how = ENDED[state] or '' end
    if how == '' and not state then unknown[#unknown + 1] = each.id
    elseif each.condition == 'corr' then wanted[#wanted + 1] = {id = each.id, condition = 'corr', how = how}
    elseif how == '' then wanted[#wanted + 1] = {id = each.id, condition = each.condition, how = ''}
    elseif not is_met(each.condition, how) then return nil, {'never', each.id, how} end
  end
  if #unknown > 1 then return nil, unknown end
  return wanted
end

-- Make the job wait for these dependencies.
function set_dependencies(id, job, wanted)
  local left = {}
  for _, each in ipairs(wanted) do
    left[#left + 1] = each.id .. ':' .. each.condition
    call('ZADD', key2('dep', each.id), id, id)
    if each.condition == 'corr' then call('ZADD', key2('corr', each.id), id, id) end
    if each.how ~= '' then call('ZADD', P .. 'timers', 0, 'd:' .. each.id .. ':' .. each.how) end
  end
  local before = job.after
  job.after = #left > 0 and table.concat(left, ',') or nil
  if job.after then call('HSET', job_key(id), F.after, job.after)
  elseif before then call('HDEL', job_key(id), F.after) end
end

-- Drop all dependencies of the job.
function drop_dependencies(id, job)
  for _, each in ipairs(dependencies(job.after)) do
    call('ZREM', key2('dep', each.id), id)
    if each.condition == 'corr' then call('ZREM', key2('corr', each.id), id) end
  end
  if job.after then call('HDEL', job_key(id), F.after, F.pending) end
  job.after = nil
end

-- Record a waiting job that no queue lists: it is held, waits for a time or another job, or is an array (a queue lists
-- that as one job, however many members wait). Limits count these jobs as well (waiting_of in limits.lua).
function record_unqueued(id, job)
  if not job.user then return end
  call('ZADD', key2('aside', job.user), job.left and 1 or 0, id)
  call('SADD', P .. 'asiders', job.user)
end

-- Undo record_unqueued: the job waits no longer, or a queue lists it again. An array keeps its record until it ends.
function forget_unqueued(id, job)
  if not job.user or call('ZREM', key2('aside', job.user), id) == 0 then return end
  if call('EXISTS', key2('aside', job.user)) == 0 then call('SREM', P .. 'asiders', job.user) end
end

-- Return whether the job, or each member of an array, waits for another job.
local function waits_for_others(id, job)
  local all = dependencies(job.after)
  for _, each in ipairs(all) do
    if each.condition ~= 'corr' then return true end
  end
  return #all > 0 and not any_may_start(id)
end

-- Queue a job if it may start. -> its wait reason: '' if it is in the queue
function queue_if_ready(id, job, now)
  local must_wait, depends = moment(job.not_before_ms) > now, job.after and waits_for_others(id, job)
  if depends or must_wait then record_unqueued(id, job) end
  if depends then return 'dependency' end
  if must_wait then
    call('ZADD', P .. 'timers', job.not_before_ms, id)
    return string.match(job.not_before_reason or '', '^[%l_]+$') or 'begin'
  end
  if job.not_before_ms then call('HDEL', job_key(id), F.not_before_ms, F.not_before_reason) end
  if job.not_before_ms or (job.reason or '') ~= '' or job.state == 'held' then -- keeps its position, but has waited for a device only from now on
    call('HSET', job_key(id), F.ready_since_ms, whole(now))
    if not job.left then forget_unqueued(id, job) end
  end
  enqueue(id, job.priority, job.user, job.shape)
  return ''
end

-- Remove a waiting job from its queue. `for_good`: it also drops its begin time and dependencies. `stays`: it is queued
-- again at once, so it keeps its reservation.
function leave(id, job, for_good, stays)
  if job.not_before_ms then call('ZREM', P .. 'timers', id) end
  if not stays and unreserve(id) then wake('room') end -- other jobs may start there
  leave_queue(id, job.priority, job.user, job.shape)
  if not for_good then return end
  forget_unqueued(id, job)
  drop_dependencies(id, job)
  call('HDEL', job_key(id), F.not_before_ms, F.not_before_reason)
end

-- Cancel a job whose dependency cannot be met any more.
local function cancel_dependent(id, job, parent, now)
  leave(id, job, true)
  local because = 'dependency ' .. parent
  local emptied = {} -- an array has no waiting or held member left; the history needs that too
  if job.left then
    call('HSET', job_key(id), F.left, '', F.held, '', F.cancelled, call('HGET', job_key(id), F.members) or 0)
    emptied = {'left', '', 'held', ''}
  end
  local event = record_event('cancel', id, 'cancelled', now, job.attempts, job.losses, 'dependency', 'because', because, unpack(emptied))
  close(id, 'cancelled', now, event)
  call('HSET', job_key(id), F.reason, 'dependency', F.because, because)
end

local function end_of(parent, how) -- in words; a forgotten job has no state to name
  if how == 'ok' then return ' succeeded' end
  local state = call('HGET', job_key(parent), F.state)
  return (state == 'cancelled' or state == 'lost') and ' was ' .. state or ' failed'
end

-- Update one job when a job that it depends on has ended.
local function parent_ended(id, parent, how, now)
  local job = read_job(id)
  if job.state ~= 'queued' and job.state ~= 'held' and not job.left then return end
  local left, followed = {}, false
  for _, each in ipairs(dependencies(job.after)) do
    if each.id ~= parent then left[#left + 1] = each
    elseif each.condition == 'corr' then followed = true
    elseif not is_met(each.condition, how) then return cancel_dependent(id, job, parent .. end_of(parent, how), now) end
  end
  set_dependencies(id, job, left)
  if followed then
    call('ZREM', key2('corr', parent), id)
    return members_known(id, parent, 'fail', nil, now) -- those that still wait for a member
  end
  if job.state ~= 'queued' or job.after or not queueable(job) then return end
  local reason = queue_if_ready(id, job, now)
  call('HSET', job_key(id), F.reason, reason)
  record_event('ready', id, 'queued', now, job.attempts, job.losses, reason)
end

-- Queue what is due: jobs whose time has come, or whose dependencies ended. Handles a bounded number: thousands may
-- depend on one job, and a running script blocks all clients.
function queue_due(now)
  local left = LET_IN
  while left > 0 do
    local due = call('ZRANGE', P .. 'timers', '-inf', whole(now), 'BYSCORE', 'LIMIT', 0, 1)[1]
    if not due then break end
    local parent, how = string.match(due, '^d:(%d+):(%l+)$')
    local array, its_end, last, members = string.match(due, '^c:(%d+):(%l+):(%d+):([%d,:-]+)$')
    if array then
      local children = call('ZRANGE', key2('corr', array), '(' .. last, '+inf', 'BYSCORE', 'LIMIT', 0, left)
      call('ZREM', P .. 'timers', due)
      for i = 1, #children do members_known(children[i], array, its_end, members, now) end
      if #children == left then
        call('ZADD', P .. 'timers', 0, 'c:' .. array .. ':' .. its_end .. ':' .. children[#children] .. ':' .. members)
      end
      left = left - #children - 1
    elseif parent then
      local children = call('ZRANGE', key2('dep', parent), 0, left - 1)
      for i = 1, #children do
        call('ZREM', key2('dep', parent), children[i])
        parent_ended(children[i], parent, how, now)
      end
      if #children < left then call('ZREM', P .. 'timers', due) end
      left = left - #children - 1
    else
      call('ZREM', P .. 'timers', due)
      local job = read_job(due)
      if job.state == 'queued' and queueable(job) then
        local reason = queue_if_ready(due, job, now)
        call('HSET', job_key(due), F.reason, reason)
        if reason == '' then record_event('ready', due, 'queued', now, job.attempts, job.losses, '', 'begin', '') end
      end
      left = left - 1
    end
  end
  if left < LET_IN then wake('work') end
end

-- Run queue_due if anything is due, when a job ends. (claim.lua checks that itself, before it loads this part.)
function queue_due_if_any(now)
  local first = call('ZRANGE', P .. 'timers', 0, 0, 'WITHSCORES')
  if first[2] and tonumber(first[2]) <= now then queue_due(now) end
end

-- Queue or hold a job again after its run ended. It keeps its attempts, and this counts as no loss. The job waits at
-- least `later_ms`, for that reason; a held one waits for a user. The history must have the run's end before the worker
-- forgets the run: hence previous_token and previous_event. `more`: further fields of the event.
function queue_again(id, job, now, state, reason, later_ms, ended, more)
  job.not_before_ms, job.not_before_reason, job.reason = nil, nil, nil
  if later_ms > 0 then
    job.not_before_ms, job.not_before_reason = whole(now + later_ms), reason
    call('HSET', job_key(id), F.not_before_ms, job.not_before_ms, F.not_before_reason, reason)
  end
  local why = reason
  if state == 'queued' then
    call('HSET', job_key(id), F.ready_since_ms, whole(now)) -- time in which it ran is no waiting time
    why = queue_if_ready(id, job, now)
  else
    record_unqueued(id, job)
  end
  local event = record_event('finish', id, state, now, job.attempts, job.losses, why, 'token', job.token, 'ended', ended, 'again', reason,
    'begin', job.not_before_ms or '', 'retries', to_count(job.retries), 'requeues', to_count(job.requeues), unpack(more))
  call('HSET', job_key(id), F.state, state, F.reason, why, F.previous_token, job.token, F.previous_event, event,
    F.token, '', F.devices, '', F.host, '',
    F.worker, '', F.retries, to_count(job.retries), F.requeues, to_count(job.requeues))
  if job.retry_after then call('HSET', job_key(id), F.retry_after, job.retry_after) end
end

-- Grant a retry to a job whose run ended this way, and count it. -> delay in ms, or nil
local function retry_after(job, ending)
  if ending == 'idle' or ending == 'wrong_device' or ending == 'nan' then return nil end -- another run would end like it
  local retries = to_count(job.retries)
  if retries >= to_count(job.retries_allowed) or job.requeue ~= '1' or not queueable(job) then return nil end
  local on = ',' .. (job.retry_on or '') .. ','
  if not string.find(on, ',any,', 1, true) and not string.find(on, ',' .. ending .. ',', 1, true) then return nil end
  job.retries, job.retry_after = tostring(retries + 1), tostring(job.attempts)
  return math.min(RETRY_MS * 2 ^ math.min(retries, 20), LONGEST_MS)
end

-- Decide what follows a failed run, by its ending. The requeue after a long run does not count.
-- -> queued, why, delay in ms | held, why, 0 | failed
function after_failure(job, ending, is_long)
  local kind, code = ending.kind, ending.exit_code
  if kind == 'exited' and code == EX_TEMPFAIL and job.requeue == '1' and queueable(job) then
    if not is_long then
      if to_count(job.requeues) >= REQUEUES then return 'held', 'requeued_too_often', 0 end
      job.requeues = tostring(to_count(job.requeues) + 1)
    end
    return 'queued', 'requeue', REQUEUE_MS
  end
  local later_ms = retry_after(job, (kind == 'exited' or kind == 'stalled') and 'failed' or tostring(kind))
  if later_ms then return 'queued', 'retry', later_ms end
  return 'failed'
end

-- Return whether the next run of a job only follows what its engine runs: a loss is no reason to end it.
local function is_followed(job) return is_engine((select(5, parse_shape(job.shape)))) end

-- Handle a run whose ending is unknown: queue the job again, hold it, or end it. Used by lose.lua and reap.lua.
function lose(id, job, now, loss_limit, detail)
  local losses = job.losses + 1
  free_devices(id, job, now)
  local state, reason, later_ms = 'queued', '', nil
  if job.state == 'cancelling' then state = 'cancelled'
  elseif not queueable(job) or (job.requeue ~= '1' and not is_followed(job)) then state = 'lost'
  elseif losses >= loss_limit then
    later_ms = retry_after(job, 'lost')
    if not later_ms then state, reason = 'held', 'lost_too_often' end
  end
  job.not_before_ms, job.not_before_reason, job.reason = nil, nil, nil
  if later_ms then
    job.not_before_ms, job.not_before_reason = whole(now + later_ms), 'retry'
    call('HSET', job_key(id), F.not_before_ms, job.not_before_ms, F.not_before_reason, job.not_before_reason,
      F.retries, job.retries, F.retry_after, job.retry_after)
  end
  if state == 'queued' then reason = queue_if_ready(id, job, now) elseif state == 'held' then record_unqueued(id, job) end
  local event = record_event('lose', id, state, now, job.attempts, losses, reason, 'token', job.token, 'detail', detail,
    'begin', job.not_before_ms or '', 'retries', to_count(job.retries))
  call('HSET', job_key(id), F.state, state, F.losses, losses, F.reason, reason, F.token, '', F.devices, '',
    F.host, '', F.worker, '',
    F.ready_since_ms, whole(now)) -- time in which it ran is no waiting time
  if state == 'cancelled' or state == 'lost' then close(id, state, now, event) end
  wake('room')
  return state
end
end
