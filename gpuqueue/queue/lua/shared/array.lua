-- Arrays: one entry for all members that no device has claimed yet. Goes after array_index.lua, before every script
-- that may move a job.
--
-- A claimed member is a job of its own, with the id array + 1 + index and the spec of its array. am:<array> holds the
-- claimed members that have not ended.
--
-- Where an array follows another, its field `pending` has the indexes whose member there has not succeeded. They are
-- among the waiting or held ones like all others, but are not claimed.
--
-- An array's state follows from its members, whichever script moved them:
-- arrow: queued -> running
-- arrow: queued -> held
-- arrow: queued -> cancelling
-- arrow: queued -> cancelled
-- arrow: held -> queued
-- arrow: held -> running
-- arrow: held -> cancelled
-- arrow: running -> queued
-- arrow: running -> held
-- arrow: running -> cancelling
-- arrow: running -> succeeded
-- arrow: running -> failed
-- arrow: running -> cancelled
-- arrow: cancelling -> succeeded
-- arrow: cancelling -> failed
-- arrow: cancelling -> cancelled
local MOST_INDEX, COUNTERS, parse_canonical, count_in, cut, join, array_of, begin_array, read_array, failures_of,
  update_array, split, spec_of, is_spec_of, still_waits, restore_member, restore, members_ended, follow, begin_follow
do
MOST_INDEX = 999999
-- Wait reasons that update_array sets itself, and so may replace.
local RECOMPUTED = {array_limit = true, dependency = true, begin = true, retry = true, requeue = true}
COUNTERS = {succeeded = F.succeeded, failed = F.failed, cancelled = F.cancelled, lost = F.lost}

local function member_id(array, index) return whole(tonumber(array) + 1 + index) end

local function write_range(first, last, step)
  if first == last then return whole(first) end
  return whole(first) .. '-' .. whole(last) .. (step > 1 and ':' .. whole(step) or '')
end

local function write_ranges(ranges)
  local words = {}
  for i = 1, #ranges do words[i] = write_range(unpack(ranges[i])) end
  return table.concat(words, ',')
end

-- Parse ranges that are written in canonical form. -> ranges, or nil
function parse_canonical(text)
  local ranges = parse_ranges(text)
  for _, range in ipairs(ranges) do
    if range[1] > range[2] or range[2] > MOST_INDEX or range[3] < 1 then return nil end
  end
  return write_ranges(ranges) == text and ranges or nil
end

-- Split off the first index of a text. -> the index, the text without it; nil if there is none. Reads one range only,
-- however many there are.
local function take_first(text)
  local first, last, step, rest = string.match(text, '^(%d+)%-?(%d*):?(%d*),?(.*)$')
  if not first then return nil end
  first = tonumber(first)
  last, step = tonumber(last) or first, tonumber(step) or 1
  local after = first + step
  if after > last then return first, rest end
  local head = write_range(after, last, after == last and 1 or step)
  return first, rest == '' and head or head .. ',' .. rest
end

-- Count the indexes of an ascending text in canonical form; nil for any other text. The text of an array may have
-- millions of characters, so this stores nothing and reads each character once.
function count_in(text)
  if string.find(text, '%f[%d]0%d') then return nil end
  local count, above, next_at = 0, -1, 1
  for at, first, last, step, after in string.gmatch(text, '()(%d+)%-?(%d*):?(%d*),?()') do
    local length, low, high, by = #first, tonumber(first), nil, 1
    if last ~= '' then
      length, high = length + 1 + #last, tonumber(last)
      if high <= low then return nil end
    end
    if step ~= '' then
      length, by = length + 1 + #step, tonumber(step)
      if not high or by < 2 then return nil end
    end
    if after <= #text then length = length + 1 end -- a comma follows, and another range
    if at ~= next_at or after - at ~= length or low <= above then return nil end
    above, next_at = high or low, after
    count = count + (high and math.floor((high - low) / by) + 1 or 1)
  end
  if next_at ~= #text + 1 or above > MOST_INDEX then return nil end
  return count
end

-- Return `ranges` without the indexes from the first to the last of each of `others`. Both ascend. Reads each once, for
-- both may be as scattered as the endings of a million members.
local function without(ranges, others)
  local left, next_other = {}, 1
  local function put(first, last, step)
    if first <= last then left[#left + 1] = {first, last, first == last and 1 or step} end
  end
  for _, range in ipairs(ranges) do
    local first, last, step = unpack(range)
    while others[next_other] and others[next_other][2] < first do next_other = next_other + 1 end
    local i = next_other
    while others[i] and others[i][1] <= last do
      local from, to = others[i][1], others[i][2]
      if from > first then put(first, first + math.floor((from - 1 - first) / step) * step, step) end
      if to >= first then first = first + (math.floor((to - first) / step) + 1) * step end
      i = i + 1
    end
    put(first, last, step)
  end
  return left
end

-- Cut some parts (ranges without steps) out of a text of indexes. -> text of what is left, ranges that were cut
function cut(text, parts)
  local ranges = parse_ranges(text)
  table.sort(parts, function(a, b) return a[1] < b[1] end)
  local left = without(ranges, parts)
  return write_ranges(left), without(ranges, left)
end

-- Merge ranges into a text of indexes. -> text, in ascending order
function join(text, more)
  local ranges, joined = parse_ranges(text), {}
  for _, range in ipairs(more) do ranges[#ranges + 1] = range end
  table.sort(ranges, function(a, b) return a[1] < b[1] end)
  for _, range in ipairs(ranges) do
    local last = joined[#joined]
    if last and last[3] == 1 and range[3] == 1 and last[2] + 1 == range[1] then last[2] = range[2]
    else joined[#joined + 1] = {unpack(range)} end
  end
  return write_ranges(joined)
end

-- Read the array part of a spec. -> text of its indexes, their ranges, concurrency limit or nil, failures after which
-- its rest is held or nil; nil for a single job; false for an invalid array. (Quotes inside strings of a spec are
-- escaped, so the pattern cannot match in a string.)
function array_of(spec)
  if not string.find(spec, '"array":{', 1, true) then return nil end
  local _, stop, text = string.find(spec, '"array":{"indexes":"([%d,:-]+)"')
  if not text or #text > 4096 then return false end
  local ranges = parse_canonical(text)
  if not ranges or #ranges == 0 then return false end
  for i = 2, #ranges do
    if ranges[i][1] <= ranges[i - 1][2] then return false end -- an index is named twice
  end
  local cap, at = string.match(spec, '^,"at_once":(%d+)()', stop + 1)
  local failures = tonumber(string.match(spec, '^,"max_failures":(%d+)', at or stop + 1))
  return text, ranges, tonumber(cap), failures and failures > 0 and failures or nil
end

-- Set up a new array and assign its members' ids, unless those are taken already (take_ids.lua).
function begin_array(id, spec, held, job, are_taken)
  local text, ranges, cap, failures = array_of(spec)
  if not text then return end
  if not are_taken then call('INCRBY', P .. 'seq', ranges[#ranges][2] + 1) end
  call('HSET', job_key(id), F.left, held and '' or text, F.held, held and text or '', F.members, count_of(ranges))
  if cap then call('HSET', job_key(id), F.at_once, cap) end
  if failures then call('HSET', job_key(id), F.max_failures, failures) end
  job.left = text
  record_unqueued(id, job)
end

local STORED, NAMES = F{state, user, priority, shape, left, held, at_once, all_cancelled, reason, succeeded, failed, cancelled,
  lost, after, not_before_ms, not_before_reason, progress_unknown, max_failures, failures_before, pending}
function read_array(id)
  local values, array = call('HMGET', job_key(id), unpack(STORED)), {}
  for i = 1, #NAMES do array[NAMES[i]] = values[i] or nil end
  array.at_once, array.held = tonumber(array.at_once or ''), array.held or ''
  return array
end

-- Count the members that failed or were lost.
function failures_of(array) return to_count(array.failed) + to_count(array.lost) end

-- Compute the state of an array. `open` counts the claimed members that have not ended. Whether these run, are held or
-- wait again makes no difference here: each claim would have to move the array back and forth. Clients show their
-- states (client/reads.py).
local function state_of(array, open)
  if open > 0 and array.all_cancelled then return 'cancelling' end
  if array.left ~= '' then return 'queued' end
  if open > 0 then return 'running' end
  if array.held ~= '' or array.progress_unknown then return 'held' end
  if to_count(array.cancelled) > 0 then return 'cancelled' end
  return failures_of(array) > 0 and 'failed' or 'succeeded'
end

-- Return the waiting indexes that may be claimed.
local function claimable(left, pending)
  return pending and write_ranges(without(parse_ranges(left), parse_ranges(pending))) or left
end

-- Return whether an array has a waiting member that waits for no member of another array.
function any_may_start(id)
  local left, pending = unpack(call('HMGET', job_key(id), F.left, F.pending))
  return claimable(left or '', pending) ~= ''
end

-- Return whether the rest of an array is to be held: so many members failed since its last release, and none succeeded.
local function fails_too_often(array)
  local most = tonumber(array.max_failures or '')
  return most and array.left ~= '' and to_count(array.succeeded) == 0
    and failures_of(array) - to_count(array.failures_before) >= most
end

-- Hold all members that are not claimed. -> fields of the event
local function hold_rest(id, array)
  local because = whole(failures_of(array)) .. ' of its members failed and none succeeded'
  array.held, array.left = join(array.held, parse_ranges(array.left)), ''
  call('HSET', job_key(id), F.left, '', F.held, array.held, F.because, because)
  return {'left', '', 'held', array.held, 'because', because}
end

-- Update an array from its members: queued while a member may be claimed, ended once all have ended. The outbox gets an
-- event where the state changes, or with the act that caused this. -> state
function update_array(id, now, act, ...)
  local array = read_array(id)
  if not array.left or not array.state or COUNTERS[array.state] then return array.state end
  local fields = {...}
  if not act and fails_too_often(array) then act, fields = 'hold', hold_rest(id, array) end
  local open = call('SCARD', key2('am', id))
  local state, full = state_of(array, open), array.at_once and open >= array.at_once
  local follows = state == 'queued' and claimable(array.left, array.pending) == ''
  local why = state == 'held' and 'held' or (state == 'queued' and full and 'array_limit') or (follows and 'dependency') or ''
  local others = array.state == 'queued' and state == 'queued' and (array.reason or '') ~= '' and not RECOMPUTED[array.reason]
  if others then why = array.reason -- another act set this reason, and that act clears it
  elseif state == 'queued' and not full and not follows and queueable(array) then why = queue_if_ready(id, array, now)
  else leave(id, array, COUNTERS[state]) end
  if state ~= array.state or why ~= array.reason then call('HSET', job_key(id), F.state, state, F.reason, why) end
  if act or state ~= array.state then
    local event = record_event(act or 'array', id, state, now, 0, 0, state == 'held' and why or '', unpack(fields))
    if COUNTERS[state] then
      forget_unqueued(id, array)
      close(id, state, now, event)
    end
  end
  return state
end

-- Turn the first waiting member into a job of its own. `rm` is the array's text of waiting indexes.
-- -> id, index, text of what is left; nil if no member may be claimed (the array then leaves the queue)
function split(id, rm, now)
  local key = job_key(id)
  local u, priority, sh, mem, rq, ts, cap, tw, rt, ro, lf, pending =
    unpack(call('HMGET', key, F.user, F.priority, F.shape, F.mem_bytes, F.requeue, F.submitted_ms, F.at_once,
      F.member_claimed_ms, F.retries_allowed, F.retry_on, F.promotions, F.pending))
  local index, left = nil, rm
  if not cap or call('SCARD', key2('am', id)) < tonumber(cap) then
    local ready = claimable(rm, pending)
    repeat
      index, ready = take_first(ready)
      if pending and index then left = cut(left, {{index, index, 1}}) end
    until not index or call('EXISTS', job_key(member_id(id, index))) == 0 -- a member must never exist twice
    if not pending then left = ready end
  end
  local member = index and member_id(id, index)
  if member then
    call('HSET', job_key(member), F.state, 'queued', F.user, u, F.priority, priority, F.shape, sh,
      F.mem_bytes, mem or '', F.requeue, rq or '0', F.attempts, 0,
      F.losses, 0, F.submitted_ms, ts or whole(now), F.member_claimed_ms, whole(now), F.array, id, F.index, index)
    -- each member has the requested retries
    if rt then call('HSET', job_key(member), F.retries_allowed, rt, F.retry_on, ro or '') end
    if lf then call('HSET', job_key(member), F.promotions, lf) end -- a promoted job preempts none when it waits again
    call('ZADD', P .. 'live', member, member)
    call('SADD', key2('am', id), member)
  end
  call('HSET', key, F.left, left or '', F.member_claimed_ms, whole(now))
  if not tw then
    call('HSET', key, F.started_ms, whole(now))
    record_event('array', id, 'queued', now, 0, 0, '', 'began', whole(now))
  end
  if cap or pending or not left or left == '' then
    update_array(id, now)
    left = call('HGET', key, F.left) -- the rest may be held now
  end
  return member, index, left
end

-- Count an ended member in its array.
after_close = function(id, state, now)
  local array, index = unpack(call('HMGET', job_key(id), F.array, F.index))
  if not array or call('SREM', key2('am', array), id) == 0 then return end
  call('HINCRBY', job_key(array), COUNTERS[state], 1)
  index = tonumber(index or '')
  if index then members_ended(array, state == 'succeeded' and 'ok' or 'fail', {{index, index, 1}}) end
  update_array(array, now)
end

-- Report the end of some members to the arrays that follow this one: in batches (queue_due in dependencies.lua).
function members_ended(id, how, ranges)
  if #ranges == 0 or call('EXISTS', key2('corr', id)) == 0 then return end
  call('ZADD', P .. 'timers', 0, 'c:' .. id .. ':' .. how .. ':0:' .. write_ranges(ranges))
end

-- Update an array when members of the array that it follows have ended: those of the same index may be claimed, or are
-- cancelled. `text` has the indexes; nil: all that still wait.
function members_known(id, parent, how, text, now)
  local array = read_array(id)
  if not array.left or COUNTERS[array.state] then return end
  local ranges = parse_ranges(text or array.pending)
  local pending = cut(array.pending or '', ranges)
  if pending ~= '' then call('HSET', job_key(id), F.pending, pending) else call('HDEL', job_key(id), F.pending) end
  local moved, held = {}, {}
  if how ~= 'ok' then
    array.left, moved = cut(array.left, ranges)
    array.held, held = cut(array.held, ranges)
  end
  for _, range in ipairs(held) do moved[#moved + 1] = range end
  if #moved == 0 then return update_array(id, now) end
  local part = join('', moved)
  call('HINCRBY', job_key(id), F.cancelled, count_of(moved))
  call('HSET', job_key(id), F.left, array.left, F.held, array.held)
  members_ended(id, 'fail', moved)
  local because = 'dependency ' .. parent .. '_' .. whole(moved[1][1]) .. ' did not succeed'
  if array.left == '' and array.held == '' then call('HSET', job_key(id), F.because, because) end -- else none is held for it
  update_array(id, now, 'cancel', 'part', part, 'left', array.left, 'held', array.held, 'because', because)
end

-- Find what has ended of the array that a request follows member by member. `good` and `bad` are the members that have
-- ended, as far as the caller knows: the store forgets them.
-- -> {array, members that succeeded, members that did not}, nil if it follows none | nil, the reply
function follow(wanted, waits, spec)
  local parent
  for _, each in ipairs(wanted) do
    if each.condition == 'corr' then parent = each.id end
  end
  if not parent then return nil end
  local text, ranges = array_of(spec)
  local good, bad = parse_ranges(waits.good), parse_ranges(waits.bad)
  local array = read_array(parent)
  if array.state then
    local its_text = array.left and array_of(call('GET', key2('s', parent)) or '') or ''
    if its_text ~= text then return nil, {'unequal', parent, its_text} end
    local rest = array.progress_unknown and {} or ranges
    for _, some in ipairs({parse_ranges(array.left), parse_ranges(array.held), good, bad}) do rest = without(rest, some) end
    for _, member in ipairs(call('SMEMBERS', key2('am', parent))) do
      local index = tonumber(call('HGET', job_key(member), F.index) or '')
      if index then rest = without(rest, {{index, index, 1}}) end
    end
    for _, range in ipairs(rest) do
      for index = range[1], range[2], range[3] do
        local state = call('HGET', job_key(member_id(parent, index)), F.state)
        if not state then return nil, {'unknown', parent} end
        local some = state == 'succeeded' and good or bad
        some[#some + 1] = {index, index, 1}
      end
    end
    good, bad = parse_ranges(join('', good)), parse_ranges(join('', bad))
  end
  if #good == 0 and #without(ranges, bad) == 0 then return nil, {'never', parent, 'fail'} end
  return {parent = parent, good = good, bad = bad}
end

-- Let a new array, or one that is edited, follow another.
function begin_follow(id, spec, good)
  local pending = write_ranges(without(select(2, array_of(spec)), good))
  if pending ~= '' then call('HSET', job_key(id), F.pending, pending) end
end

-- Return the spec of a job; of a member the spec of its array, unless that was lost.
function spec_of(id, array)
  return call('GET', key2('s', id)) or (array and call('GET', key2('s', array))) or false
end

-- Read the owner from a spec that was restored from outside the store. -> array, index; nil if the job is no member
local function owner_in(spec)
  local array, index = string.match(spec, ',"of":(%d+),"index":(%d+)}$')
  if not array or #array > 15 or #index > 6 then return nil end
  return array, tonumber(index)
end

-- Return whether this restored spec belongs to the job.
function is_spec_of(spec, id)
  local array, index = owner_in(spec)
  if not array then return spec == call('GET', key2('s', id)) end
  local j = call('HMGET', job_key(id), F.array, F.index)
  return j[1] == array and tonumber(j[2] or '') == index
end

-- Return whether an array of this store still waits to hand out this member; nil if the store has no such array.
function still_waits(spec)
  local array, index = owner_in(spec)
  local waiting = array and call('HMGET', job_key(array), F.left, F.held)
  if not waiting or not waiting[1] then return nil end
  for i = 1, 2 do
    local _, taken = cut(waiting[i] or '', {{index, index, 1}})
    if #taken > 0 then return true end
  end
  return false
end

-- Connect a restored job with its array, if it is a member: the array then hands out this index no more.
function restore_member(id, spec, now)
  local array, index = owner_in(spec)
  if not array then return end
  call('HSET', job_key(id), F.array, array, F.index, index)
  local waiting = call('HMGET', job_key(array), F.left, F.held)
  if not waiting[1] then return end
  call('SADD', key2('am', array), id)
  call('DEL', key2('s', id))
  local alone = {{index, index, 1}}
  local left, held = cut(waiting[1], alone), cut(waiting[2] or '', alone)
  if left == waiting[1] and held == waiting[2] then return end
  call('HSET', job_key(array), F.left, left, F.held, held)
  update_array(array, now, 'array', 'left', left, 'held', held)
end

-- Restore a job of the history: a member, an array or a single job.
function restore(id, spec, now, job)
  if owner_in(spec) then return restore_member(id, spec, now) end
  local text, ranges, cap, failures = array_of(spec)
  if not text then return end
  -- Until rebuild_array.lua reports the progress there is nothing to claim or release: what has run must not run again.
  call('HSET', job_key(id), F.left, '', F.held, '', F.progress_unknown, 1, F.members, count_of(ranges))
  if cap then call('HSET', job_key(id), F.at_once, cap) end
  if failures then call('HSET', job_key(id), F.max_failures, failures) end
  job.left = ''
  record_unqueued(id, job)
end
end
