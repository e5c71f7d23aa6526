-- What every script shares, behind core.lua: devices, promises, usage, the order of the queue, ends.
-- Why the store cannot serve, or nil. One that lost its data knows no job: its word would end what runs, and ids
-- would be given out twice. Every script asks this first, but those that make the store ready (see ../scripts.py).
local function refusal()
  if call('EXISTS', P .. 'epoch') == 1 then return nil end
  if call('EXISTS', P .. 'rebuilding') == 1 then return redis.error_reply('REBUILDING the jobs are on their way back') end
  return redis.error_reply('NOTOPEN the store knows nothing')
end

local GONE_MS = 5000 -- a run at its time limit still needs a moment to go (as GONE_MS in ../limiting.py)

-- Does a job of this shape want its devices for itself? Its leases say so at their end, and nobody joins it there.
local function wants_alone(shape)
  local _, _, _, _, _, more = parse_shape(shape)
  return string.find(more or '', '^%a*x') ~= nil
end

-- record of a device -> total, headroom, foreign, seen, slots, pool, kind: gpu, mig (a part of one), simulated, cpu.
-- Workers of older versions do not tell the kind; there the device's name does.
local KIND_BY_NAME = {['cpu-'] = 'cpu', ['MIG-'] = 'mig', ['sim-'] = 'simulated'}
local function parse_record(record, device)
  local total, headroom, foreign, seen, slots, pool, kind =
    string.match(record, '^(%d+):(%d+):(%d+):(%d+):(%d+):([^:]*):?(.*)$')
  if kind == '' then kind = KIND_BY_NAME[string.sub(device, 1, 4)] or 'gpu' end
  return total, headroom, foreign, seen, slots, pool, kind
end

-- Does the queue know of a GPU? Lost, drained and silent ones count until they are withdrawn. Looked up once at most.
local function gpus_known()
  if learned.gpus_known ~= nil then return learned.gpus_known end
  learned.gpus_known = false
  local hosts = call('SMEMBERS', P .. 'hosts')
  for h = 1, #hosts do
    local records = call('HGETALL', key2('dev', hosts[h]))
    for i = 1, #records, 2 do
      local total, _, _, _, _, _, kind = parse_record(records[i + 1], records[i])
      if total and kind ~= 'cpu' then
        learned.gpus_known = true
        return true
      end
    end
  end
  return false
end

-- May a device of this kind take a job with this wish? As gpuqueue.model.device.suits. A wish that nobody knows suits none.
local function suits(wish, kind)
  local on_gpu = kind ~= 'cpu'
  if wish == '' then return on_gpu or not gpus_known() end
  if wish == 'gpu' then return on_gpu end
  if wish == 'cpu' then return not on_gpu end
  return wish == 'any'
end

-- What a script is handed is judged before its first write: writes are not undone when a script dies half-way. Each
-- script names the kinds of its arguments in their order. The argument itself is not repeated: it may be anything.
local misfit, expect
do
local NUMBER, WORD, MOST = '^%d+$', '^[%w_.@+-]+$', '9007199254740992' -- 2^53, what a double counts up to
local KINDS = {
  levels = '^[0-3]+$', id = '^[1-9]%d*$', size = '^[1-9]%d*$', bytes = NUMBER, ms = NUMBER, count = NUMBER, level = '^[0-3]$', ['level?'] = '^[0-3]?$', flag = '^[01]$',
  token = '^%d+%.%w+$', nonce = '^%w+$', user = WORD, by = '^[%w_.@+-]*$', host = WORD, pool = '^[%w_.@+-]*$', worker = '^[^%c]+$',
  device = '^[!-+%-.-9;-~]+$', shape = '^%d+:%d+:[1-9]%d?:[%w_.@+:,/-]*$', word = WORD,
  devices = '^[!-+%-.-9;-~,]*$', -- no comma or colon in a device
  gang = '^[!-+%-.-9;-~,]+$', -- the devices that a run holds: at least one
  passed = '^%d*$', -- '' where it is not known
  later = '^%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d$', -- at most thirty years
  users = '^[%w_.@+*,-]*$', tags = '^[%w_.@+,-]*$', -- separated by commas
  indexes = '^[%d,-]*$', ranges = '^[%d,:-]*$', -- of an array; the latter with steps
  limit = '^%a+:[%w_.@+*-]+$', figures = '^[%w_.@+=!, -]*$', -- see limits.lua
  reason = '^[%a_]*$', rate = '^%d?%d?%d?%d%.%d+$',
}
-- So many characters an argument has at most; `ranges`, which come from ourselves, as many as a million indexes may take:
-- six and a comma each. What reads those must be quick about it (count_in in array.lua).
local LONGEST, LONGEST_RANGES = 4096, 7 * 1000000
local NUMBERS = {id = true, size = true, bytes = true, ms = true, count = true, passed = true, later = true}

-- -> the error to answer with, or nil. `from` is the first argument that is judged, 1 unless said.
function misfit(kinds, from)
  for i = 1, #kinds do
    local kind, text = kinds[i], ARGV[(from or 1) + i - 1]
    local good = text and (kind == 'text' or (#text <= (kind == 'ranges' and LONGEST_RANGES or LONGEST) and string.find(text, KINDS[kind])))
    if good and kind == 'gang' then good = not string.find(',' .. text .. ',', ',,', 1, true) end
    if good and NUMBERS[kind] then good = #text < #MOST or (#text == #MOST and text <= MOST) end
    if not good then return redis.error_reply('BADARGS argument ' .. (from or 1) + i - 1 .. ' is no ' .. kind) end
  end
end

-- As misfit, where nothing may follow.
function expect(kinds)
  if #ARGV > #kinds then return redis.error_reply('BADARGS there are ' .. #ARGV .. ' arguments, not ' .. #kinds) end
  return misfit(kinds)
end
end

-- Forward decay: a device-second spent at t weighs 2^((t - T0) / half-life). Dividing all by one number never
-- changes their order, so scores are only ever added to. (Cormode et al., "Forward Decay", ICDE 2009.)
-- The scores are whole numbers: the store keeps small sets as text, and reads fractions as slowly as text is read, of all
-- users at each claim. So weights are 2^10 and more: what is rounded is a thousandth of a device-second.
local LEAST_EXPONENT = 10
local meta, set_meta
do
local T0_S, HALF_LIFE_S = 1735689600, 7 * 86400
function meta() -- the site's figures
  if learned.meta then return learned.meta end
  local claims, ticked, fair, t0, half_life, order =
    unpack(call('HMGET', P .. 'meta', 'claims', 'reap', 'fair', 't0', 'half_life', 'order'))
  learned.meta = {claims = tonumber(claims or '') or 0, ticked = tonumber(ticked or '') or 0, fair = tonumber(fair or ''), t0_s = tonumber(t0 or '') or T0_S,
    half_life_s = tonumber(half_life or '') or HALF_LIFE_S, order = order or ''}
  return learned.meta
end
function set_meta(...)
  call('HSET', P .. 'meta', ...)
  learned.meta = nil
end
end
-- Is nothing claimed yet, since the store was rebuilt a moment ago (rebuild_finish.lua)? Until a tick has seen the end of the pause:
-- a store that was away in between learns from its next tick that the pause is not over (reap.lua).
local function pausing(now) return meta().claims > math.min(now, meta().ticked) end

local function exponent(ms) return (ms / 1000 - meta().t0_s) / meta().half_life_s end
local function weight(ms) return 2 ^ math.max(-500, math.min(500, exponent(ms))) end -- also where the clock leapt: a double holds 2^1023

-- The time that usage decays by. The reapers' ticks move it on (reap.lua), so that it goes as time goes: what was
-- charged under a clock that is a year ahead would outweigh all that anybody uses in that year.
local function fair_ms(now) return meta().fair or now end

local function rounded(usage) return math.floor(usage + 0.5) end

-- Let weights begin anew at this moment, and go by this half-life; usage is what it was, times what `factor` says of a user.
-- All is read before anything is written, so that what is damaged breaks it off as a whole: half of it would come again at
-- each tick. What is no number any more counts as nothing.
local function rebase(ms, half_life_s, factor)
  local scale = 2 ^ LEAST_EXPONENT / weight(ms)
  local found = call('ZRANGE', P .. 'fair', 0, -1, 'WITHSCORES')
  for i = 1, #LEVELS do call('ZCARD', key2('ul', LEVELS[i])) end
  for i = 1, #found, 2 do
    local user, usage = found[i], found[i + 1] * scale * factor(found[i])
    usage = math.abs(usage) < math.huge and rounded(usage) or 0
    call('ZADD', P .. 'fair', usage, user)
    for each = 1, #LEVELS do call('ZADD', key2('ul', LEVELS[each]), 'XX', usage, user) end
  end
  set_meta('t0', string.format('%.3f', ms / 1000 - LEAST_EXPONENT * half_life_s), 'half_life', string.format('%.3f', half_life_s))
end

-- Let them begin anew where they are out of reach: after as many half-lives they would soon be no whole numbers any more.
local function keep_in_reach(ms)
  local now_at = exponent(ms)
  if now_at < LEAST_EXPONENT - 1 or now_at > 2 * LEAST_EXPONENT then
    rebase(ms, meta().half_life_s, function() return 1 end)
  end
end

-- The levels at which somebody waits, high first: mostly the normal one alone, and of the others nothing need be asked.
local function levels_waited_at()
  local urgent, high, low = there(P .. 'ul:3', P .. 'ul:2', P .. 'ul:0')
  if not (urgent or high or low) then return {'1'} end
  local found = {}
  if urgent then found[1] = '3' end
  if high then found[#found + 1] = '2' end
  found[#found + 1] = '1'
  if low then found[#found + 1] = '0' end
  return found
end

-- In thousandths.
local function share_of(user) return tonumber(call('HGET', P .. 'shares', user) or '') or 1000 end

-- What counts is usage by share: whoever has twice the share may use twice as much before others go first.
local function charge(user, amount, share, levels)
  local usage = call('ZINCRBY', P .. 'fair', rounded(amount * 1000 / share), user)
  for i = 1, #levels do call('ZADD', key2('ul', levels[i]), 'XX', usage, user) end
end

-- What a run is charged in advance, in seconds, so that nobody grabs every device before the first bill: as long as
-- the user's runs usually take, and no more than DEPOSIT_S or its limit. A beat charges what lasts longer (heartbeat.lua).
-- Were it the same for all that have no limit, short ones would cost their user as much at a time as long ones.
local DEPOSIT_S = 600

-- Where a job stands among its user's: by its id, or below 0 if it was moved to the front (see priority_front.lua).
local function place_of(id)
  local front = call('HGET', job_key(id), 'fr')
  return front and '-' .. front or id
end

-- The first job of a shape; `place` is its place, as the shapes of a user have it: as text, which then is the id, or not.
local function first_at(place, lv, user, shape)
  if type(place) == 'string' and string.find(place, '^[1-9]%d*$') then return place end
  if tonumber(place) > 0 then return string.format('%.0f', place) end
  return call('ZRANGE', queue_key(lv, user, shape), 0, 0)[1] or '0' -- nobody's: a stale entry has no first job
end

-- Claims look at a user's jobs from the first on that there was room for (see claim.lua): not where one comes before it.
local function recall_passed(lv, user, place)
  local noted = key3('ub', lv, user)
  local notes = call('HGETALL', noted) -- device -> memory, for whom it is kept, and from where on
  for i = 1, #notes, 2 do
    local from = tonumber(string.match(notes[i + 1], '%-?%d+$') or '')
    if not from or tonumber(place) <= from then call('HDEL', noted, notes[i]) end
  end
end

local function enqueue(id, lv, user, shape)
  local shapes, place = key3('us', lv, user), place_of(id)
  call('ZADD', queue_key(lv, user, shape), place, id)
  if call('ZADD', shapes, 'LT', 'CH', place, shape) == 0 then return end -- neither a new shape nor an earlier head
  if call('SADD', key3('su', lv, shape), user) == 1 then
    call('ZADD', key2('sh', lv), (parse_shape(shape)), shape)
  end
  if call('ZSCORE', key2('ul', lv), user) then
    recall_passed(lv, user, place)
  else
    call('ZADD', key2('ul', lv), call('ZSCORE', P .. 'fair', user) or 0, user)
  end
end

-- What was kept for a job is kept no more: it has started, or waits no longer. -> was anything?
local function unreserve(id)
  local kept = call('HGET', job_key(id), 'rv')
  if not kept then return false end
  for device in string.gmatch(kept, '[^,]+') do
    if string.match(call('HGET', P .. 'rsv', device) or '', '^(%d+):') == id then call('HDEL', P .. 'rsv', device) end
  end
  call('HDEL', job_key(id), 'rv', 'rs', 'rk', 'pb')
  return true
end

local function leave_line(id, lv, user, shape)
  if not (lv and user and shape) then return end -- a damaged entry stands nowhere
  local queue, shapes = queue_key(lv, user, shape), key3('us', lv, user)
  if call('ZREM', queue, id) == 0 then return end
  local head = call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  if head[1] then
    call('ZADD', shapes, head[2], shape)
    return
  end
  call('ZREM', shapes, shape)
  call('SREM', key3('su', lv, shape), user)
  if call('EXISTS', key3('su', lv, shape)) == 0 then call('ZREM', key2('sh', lv), shape) end
  local waits, noted = there(shapes, key3('ub', lv, user))
  if not waits then
    call('ZREM', key2('ul', lv), user)
    if noted then call('DEL', key3('ub', lv, user)) end
  end
end


-- What a device may promise now: total - headroom - foreign - sum(max(lease, observed)).
-- Derived from the live leases each time; there is no counter that could drift.
-- -> available bytes, pool, seen, free slots, total, slots, kind, bytes if nothing ran, bytes of strangers, runs; nil
-- where nobody announced it
local function promise(host, device, record, leases)
  record = record or call('HGET', key2('dev', host), device)
  if not record then return nil end
  local total, headroom, foreign, seen, slots, pool, kind = parse_record(record, device)
  if not total then return nil end -- damaged: its worker's next beat writes it anew
  local available, capacity = total - headroom - foreign, total - headroom - foreign
  leases = leases or call('HGETALL', key2('dl', device))
  for i = 2, #leases, 2 do
    local lease, observed, alone = string.match(leases[i], '^(%d+):(%d+):?%d*:?(x?)')
    available = available - math.max(tonumber(lease) or total, tonumber(observed) or 0) -- unknown is not nothing
    if alone == 'x' then available = math.min(available, 0) end -- strangers may go: what they leave is not for us
  end
  return available, pool, tonumber(seen), slots - #leases / 2, tonumber(total), tonumber(slots), kind, capacity,
    tonumber(foreign), #leases / 2
end

-- What a run that wants its devices for itself is promised on one: all that it can give, `mem` where nobody knows it yet.
local function all_of(host, device, mem)
  local _, _, _, _, _, _, _, capacity = promise(host, device)
  return string.format('%.0f', math.max(capacity or 0, tonumber(mem)))
end

-- What a run was promised on each of its devices, by its leases: of those that it has for itself the least. nil where it
-- has none.
local function promised_to(id, names)
  local least
  for device in string.gmatch(names, '[^,]+') do
    local bytes = tonumber(string.match(call('HGET', key2('dl', device), id) or '', '^%d+') or '')
    least = bytes and math.min(least or bytes, bytes) or least
  end
  return least
end

-- What a run holds counts against its user's limits for as long as its leases are there.
local function count_run(id, user, mem, names)
  local devices, gpus = 0, 0
  for device in string.gmatch(names, '[^,]+') do
    devices = devices + 1
    if string.sub(device, 1, 4) ~= 'cpu-' then gpus = gpus + 1 end
  end
  call('HSET', key2('run', user), id, gpus .. ':' .. string.format('%.0f', devices * mem))
end

-- The text of a new lease; `nonce` is that of the claim which gives it: sent twice, it is answered twice.
local function lease_of(bytes, ends, alone, nonce) return bytes .. ':0:' .. ends .. (alone and ':x:' or '::') .. nonce end

-- Promise a run its memory on each of its devices, and write down whose run it is. What it costs counts from now on.
-- -> bytes that it has on the first of them
local function hold_devices(id, run, mem, shape, now, expires)
  local _, limit_s = parse_shape(shape)
  local ends = limit_s > 0 and string.format('%.0f', tonumber(run.tc) + limit_s * 1000) or '0'
  for name, value in pairs(run) do call('HSET', job_key(id), name, value) end
  call('HSET', job_key(id), 'tf', string.format('%.0f', fair_ms(now)), 'dep', 0)
  local alone, held, nonce = wants_alone(shape), mem, string.match(run.tok, '%w*$')
  for device in string.gmatch(run.devs, '[^,]+') do
    local bytes = alone and all_of(run.host, device, mem) or mem
    if device == string.match(run.devs, '^[^,]+') then held = bytes end
    call('HSET', key2('dl', device), id, lease_of(bytes, ends, alone, nonce))
  end
  count_run(id, call('HGET', job_key(id), 'u'), promised_to(id, run.devs) or tonumber(mem), run.devs) -- as the claim did
  call('ZADD', P .. 'leases', string.format('%.0f', expires), id)
  return held
end

-- Give back all that a run holds, and settle its deposit with the seconds that it really took: by its shim's clock
-- where that is known (took_s), since ours may have been set meanwhile.
local function free_devices(id, job, now, took_s)
  for device in string.gmatch(job.devs or '', '[^,]+') do call('HDEL', key2('dl', device), id) end
  call('ZREM', P .. 'leases', id)
  if job.u then call('HDEL', key2('run', job.u), id) end
  local claimed, deposit_s, rate = tonumber(job.tc), tonumber(job.dep), tonumber(job.rate)
  if not (job.u and claimed and deposit_s and rate) then return end -- damaged: what it cost, nobody knows any more
  local spent_s = took_s or math.max(0, now - claimed) / 1000
  if took_s then -- it ran, and was not given back
    -- Lengths of runs differ by factors: so the mean is that of their logarithms, in which the last one counts half, and
    -- what was usual when it was claimed the other. (Not its deposit: a time limit cuts that, and a beat raises it.)
    local before_s = tonumber(job.usu or call('HGET', P .. 'usual', job.u) or '') -- adopted: no claim has told
    local last_s = math.max(1, took_s)
    call('HSET', P .. 'usual', job.u, string.format('%.0f', before_s and math.sqrt(math.max(1, before_s) * last_s) or last_s))
  end
  charge(job.u, (spent_s - deposit_s) * rate * weight(tonumber(job.tf) or claimed), share_of(job.u), levels_waited_at())
end

-- Who keeps a device from new jobs: origin -> {why, by, at}. Each origin has a say of its own; see ../drains.py.
-- A plain text is of a version in which only `down` drained.
local function drains_of(device)
  local text = call('HGET', P .. 'drained', device)
  if not text then return {} end
  local ok, drains = pcall(cjson.decode, text)
  if ok and string.sub(text, 1, 1) == '{' then return drains end
  return {down = {why = text}}
end

local function keep_drains(device, drains)
  if next(drains) then call('HSET', P .. 'drained', device, cjson.encode(drains))
  else call('HDEL', P .. 'drained', device) end
end

local function drain(device, origin, why, by, now)
  local drains = drains_of(device)
  drains[origin] = {why = why, by = by, at = string.format('%.0f', now)}
  keep_drains(device, drains)
end

-- What a run's end says of its devices: it speaks well of all of them, or it died at once and speaks `against` some.
-- Three different jobs that did so in a row drain a device, in this same step. Only called for the owner of the run,
-- right before the token becomes stale: so each run speaks once, however often its end is told.
local DEATHS = 3
local function count_deaths(id, job, now, well, against, why)
  if well == '1' then
    for device in string.gmatch(job.devs or '', '[^,]+') do call('HDEL', P .. 'deaths', device) end
  end
  for device in string.gmatch(against, '[^,]+') do
    local row = cjson.decode(call('HGET', P .. 'deaths', device) or '[]')
    local known = drains_of(device).deaths ~= nil
    for i = 1, #row do known = known or row[i].job == id end -- a job that dies again and again is held one day
    if not known then row[#row + 1] = {job = id, why = why} end
    if #row < DEATHS then
      if not known then call('HSET', P .. 'deaths', device, cjson.encode(row)) end
    else
      local told = {}
      for i = 1, #row do told[i] = 'job ' .. row[i].job .. ' (' .. row[i].why .. ')' end
      drain(device, 'deaths', 'runs died one after the other right after their start, and not by their own fault as it '
        .. 'seems: ' .. table.concat(told, ', ') .. '; look at their logs and at nvidia-smi, then: gpuqueue resume '
        .. device, 'gpuqueue', now)
      call('HDEL', P .. 'deaths', device)
    end
  end
end

-- The job is over: it stays readable until the book has the event (settle.lua).
local after_close -- (id, state, now): an array counts its member; see array.lua
local function close(id, state, now, event)
  call('HSET', job_key(id), 'st', state, 'te', string.format('%.0f', now), 'ev', event, 'why', '')
  call('ZADD', P .. 'ended', string.format('%.0f', now), id)
  call('PUBLISH', P .. 'end', id)
  if call('EXISTS', key2('dep', id)) == 1 then -- others wait for this; they hear of it in pieces (dependencies.lua)
    call('ZADD', P .. 'timers', 0, 'd:' .. id .. ':' .. (state == 'succeeded' and 'ok' or 'fail'))
  end
  if after_close then after_close(id, state, now) end
end

-- What a damaged entry has lost starts over: a script that stumbles over it would stop half-way, or stop everybody.
local function counted(text) return text and #text < 10 and tonumber(string.match(text, '^%d+$')) or 0 end

local FIELDS = {'st', 'u', 'lv', 'sh', 'mem', 'rq', 'at', 'ls', 'tok', 'devs', 'tc', 'dep', 'rate', 'w', 'tf', 'why', 'nb',
  'nw', 'af', 'dk', 'rt', 'ro', 'rn', 'qn', 'rm', 'pre', 'pd', 'usu'}
local function read_job(id)
  local values = call('HMGET', job_key(id), unpack(FIELDS))
  local job = {}
  for i = 1, #FIELDS do job[FIELDS[i]] = values[i] or nil end
  job.at, job.ls = counted(job.at), counted(job.ls)
  return job
end

-- Can it stand in a queue? An entry that lost one of these can only be ended.
local function queueable(job)
  return job.u and job.sh and job.lv and string.match(job.lv, '^[0-3]$') and parse_shape(job.sh)
end

local ACTIVE = {starting = true, running = true, cancelling = true}

-- Does this writer still own the run? Every write after the claim asks this first; a stale one changes nothing.
local function owns(job, token) return ACTIVE[job.st] and job.tok == token end
