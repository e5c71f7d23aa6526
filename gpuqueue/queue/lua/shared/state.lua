-- Devices, queues and the states of jobs. Part of every script, after fair_share.lua.

-- Return why the store cannot serve, or nil. A store that lost its data knows no job: its answers would end live runs,
-- and it would assign ids twice. Every script checks this first, except those that rebuild the store (see
-- ../scripts.py).
local function refusal()
  if call('EXISTS', P .. 'epoch') == 1 then return nil end
  if call('EXISTS', P .. 'rebuilding') == 1 then return redis.error_reply('REBUILDING the jobs are on their way back') end
  return redis.error_reply('NOTOPEN the store knows nothing')
end

local GONE_MS = 5000 -- a run at its time limit still needs a moment to exit

-- Return whether a job of this shape asks for exclusive devices. Its leases are marked, and no other job joins it
-- there.
local function wants_alone(shape)
  local _, _, _, _, _, more = parse_shape(shape)
  return string.find(more or '', '^%a*x') ~= nil
end

-- Parse the record of a device. -> total, headroom, external (bytes of external processes), seen, slots, pool, kind
-- (gpu; mig, a part of a GPU; simulated; cpu; cpu-auto, which is served because no GPU was found; cpu-lost, the same on a
-- host that has served GPUs; slurm, an engine).
local function parse_record(record)
  return string.match(record, '^(%d+):(%d+):(%d+):(%d+):(%d+):([^:]*):(.*)$')
end

-- Call visit(device, host, total, headroom, external, seen, slots, pool, kind) for each device that is known, until it
-- returns true. -> whether it did
local function any_device(visit)
  local hosts = call('SMEMBERS', P .. 'hosts')
  for h = 1, #hosts do
    local records = call('HGETALL', key2('dev', hosts[h]))
    for i = 1, #records, 2 do
      local total, headroom, external, seen, slots, pool, kind = parse_record(records[i + 1])
      if total and visit(records[i], hosts[h], tonumber(total), tonumber(headroom), external, seen, slots, pool, kind) then
        return true
      end
    end
  end
  return false
end

local function is_cpu(kind) return string.sub(kind, 1, 3) == 'cpu' end
local function is_engine(kind) return kind == 'slurm' end -- it runs whole jobs, and is no device

-- Return whether the queue knows of a GPU. Lost, drained and silent GPUs count until they are withdrawn, and after that
-- as long as their host serves its CPU because it finds none.
local function gpus_known()
  if cache.gpus_known == nil then
    cache.gpus_known = any_device(function(_, _, _, _, _, _, _, _, kind) return not is_cpu(kind) and not is_engine(kind) or kind == 'cpu-lost' end)
  end
  return cache.gpus_known
end

-- Return whether a device of this kind may take a job that asks for the kind `wanted_kind`. Same rule as
-- gpuqueue.model.device.suits. An unknown `wanted_kind` matches no device.
local function suits(wanted_kind, kind)
  if is_engine(kind) or is_engine(wanted_kind) then return kind == wanted_kind end
  local on_gpu = not is_cpu(kind)
  if wanted_kind == '' then return on_gpu or not gpus_known() end
  if wanted_kind == 'gpu' then return on_gpu end
  if wanted_kind == 'cpu' then return not on_gpu end
  return wanted_kind == 'any'
end

-- Return the position of a job among the jobs of its user: its id, or a number below 0 if it was moved to the front
-- (see priority_front.lua).
local function place_of(id)
  local front = call('HGET', job_key(id), F.front)
  return front and '-' .. front or id
end

-- Return the id of the first job of a shape. `place` is its position, as us:<pr>:<user> has it. A positive position is
-- the id itself.
local function first_at(place, priority, user, shape)
  if type(place) == 'string' and string.find(place, '^[1-9]%d*$') then return place end
  if tonumber(place) > 0 then return whole(place) end
  return call('ZRANGE', queue_key(priority, user, shape), 0, 0)[1] or '0' -- a stale entry has no first job
end

-- Drop the notes of claims that skip a new job. A claim starts at the user's first shape that it noted to have room for
-- (see claim_search.lua); that is wrong once an earlier position is in the queue.
local function recall_passed(priority, user, place)
  local noted = key3('ub', priority, user)
  local notes = call('HGETALL', noted) -- device -> bytes:beside:reserved:from, see ub in ../keys.py
  for i = 1, #notes, 2 do
    local from = tonumber(string.match(notes[i + 1], '%-?%d+$') or '')
    if not from or tonumber(place) <= from then call('HDEL', noted, notes[i]) end
  end
end

local function enqueue(id, priority, user, shape)
  local shapes, place = key3('us', priority, user), place_of(id)
  call('ZADD', queue_key(priority, user, shape), place, id)
  if call('ZADD', shapes, 'LT', 'CH', place, shape) == 0 then return end -- neither a new shape nor an earlier first job
  if call('SADD', key3('su', priority, shape), user) == 1 then
    call('ZADD', key2('sh', priority), (parse_shape(shape)), shape)
  end
  if call('ZSCORE', key2('ul', priority), user) then
    recall_passed(priority, user, place)
  else
    call('ZADD', key2('ul', priority), call('ZSCORE', P .. 'fair', user) or 0, user)
  end
end

-- Drop the reservation of a job that has started or no longer waits. -> whether it had one
local function unreserve(id)
  local names = call('HGET', job_key(id), F.reserved)
  if not names then return false end
  for device in string.gmatch(names, '[^,]+') do
    if string.match(call('HGET', P .. 'rsv', device) or '', '^(%d+):') == id then call('HDEL', P .. 'rsv', device) end
  end
  call('HDEL', job_key(id), F.reserved, F.reserved_since_ms, F.by_preemption)
  return true
end

local function leave_queue(id, priority, user, shape)
  if not (priority and user and shape) then return end -- a damaged entry is in no queue
  local queue, shapes = queue_key(priority, user, shape), key3('us', priority, user)
  if call('ZREM', queue, id) == 0 then return end
  local head = call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  if head[1] then
    call('ZADD', shapes, head[2], shape)
    return
  end
  call('ZREM', shapes, shape)
  call('SREM', key3('su', priority, shape), user)
  if call('EXISTS', key3('su', priority, shape)) == 0 then call('ZREM', key2('sh', priority), shape) end
  local waits, noted = exist(shapes, key3('ub', priority, user))
  if not waits then
    call('ZREM', key2('ul', priority), user)
    if noted then call('DEL', key3('ub', priority, user)) end
  end
end

-- Record the end of a job. Its entry stays readable until the history has the event (settle.lua).
local after_close -- (id, state, now): counts the member of an array; set in array.lua
local function close(id, state, now, event)
  call('HSET', job_key(id), F.state, state, F.ended_ms, whole(now), F.end_event, event, F.reason, '')
  call('ZADD', P .. 'ended', whole(now), id)
  call('PUBLISH', P .. 'end', id)
  if call('EXISTS', key2('dep', id)) == 1 then -- dependent jobs are notified in batches (dependencies.lua)
    call('ZADD', P .. 'timers', 0, 'd:' .. id .. ':' .. (state == 'succeeded' and 'ok' or 'fail'))
  end
  if after_close then after_close(id, state, now) end
end

-- Read a counter; a damaged one restarts at 0. A script that failed on it would stop half-way, or stop every caller.
local function to_count(text) return text and #text < 10 and tonumber(string.match(text, '^%d+$')) or 0 end

local STORED, NAMES = F{state, user, priority, shape, mem_bytes, requeue, attempts, losses, token, devices, claimed_ms,
  deposit_s, rate, worker, claimed_fair_ms, reason, not_before_ms, not_before_reason, after, dedupe_key, retries_allowed,
  retry_on, retries, requeues, left, preempted_by, preempt_until_ms, usual_s, marks, time_limit_ms}
local function read_job(id)
  local values = call('HMGET', job_key(id), unpack(STORED))
  local job = {}
  for i = 1, #NAMES do job[NAMES[i]] = values[i] or nil end
  job.attempts, job.losses = to_count(job.attempts), to_count(job.losses)
  return job
end

-- Return whether the entry has all fields that a queue needs. A job that lost one of these fields can only be ended.
local function queueable(job)
  return job.user and job.shape and job.priority and string.match(job.priority, '^[0-3]$') and parse_shape(job.shape)
end

local ACTIVE = {starting = true, running = true, cancelling = true}

-- Return whether this writer still owns the run. Every write after the claim checks this first; a stale writer changes
-- nothing.
local function owns(job, token) return ACTIVE[job.state] and job.token == token end
