-- Put a job into the queue, unless no device could ever run it.
-- arrow: none -> queued
-- ARGV: user  level  mem  shape  requeue (0|1)  spec  nonce
-- returns {'queued', id, ms, 'device' if no device is known that it may run on, else ''}
--       | {'impossible', 'memory', largest bytes of one device} | {'impossible', 'devices', most of one kind on a host}
--       | {'impossible', 'mig', 0} | {'impossible', 'pool', 0} | {'impossible', 'urgent', 0}
local wrong = expect {'user', 'level', 'size', 'shape', 'flag', 'text', 'nonce'}
if wrong then return wrong end
local user, lv, mem, shape, requeue, spec, nonce = unpack(ARGV)
local need, _, n, pool, wish = parse_shape(shape)
local WISHES = {[''] = true, gpu = true, cpu = true, any = true}
if not WISHES[wish] or tonumber(mem) > need then return redis.error_reply('BADARGS argument 4 is not the shape of the job') end

-- What is not known is not impossible: a host that is down for an hour has taken its devices out of the queue.
-- -> 'queued', '' or 'device' | 'impossible', why, figure
local function judge()
  local urgent = call('HGET', P .. 'meta', 'urgent') or '*'
  if lv == '3' and urgent ~= '*' and not string.find(',' .. urgent .. ',', ',' .. user .. ',', 1, true) then
    return 'impossible', 'urgent', 0
  end
  local in_pool, largest, most, parts, anything = 0, 0, 0, 0, false
  local hosts = call('SMEMBERS', P .. 'hosts')
  for h = 1, #hosts do
    local records = call('HGETALL', key2('dev', hosts[h]))
    local candidates, fitting = {}, {} -- by kind: a job on several devices never mixes them
    for i = 1, #records, 2 do
      local total, headroom, _, _, _, its_pool, kind = parse_record(records[i + 1], records[i])
      anything = anything or total ~= nil
      if total and (pool == '' or pool == its_pool) then
        in_pool = in_pool + 1
        if suits(wish, kind) and n > 1 and kind == 'mig' then
          parts = parts + 1 -- a CUDA process can use one part of a card only
        elseif suits(wish, kind) then
          local offer = total - headroom
          candidates[kind] = (candidates[kind] or 0) + 1
          largest, most = math.max(largest, offer), math.max(most, candidates[kind])
          if offer >= tonumber(mem) then fitting[kind] = (fitting[kind] or 0) + 1 end
          if fitting[kind] == n then return 'queued', '' end
        end
      end
    end
  end
  if anything and in_pool == 0 then return 'impossible', 'pool', 0 end
  if parts > 0 and most < n then return 'impossible', 'mig', 0 end
  if most == 0 then return 'queued', 'device' end
  if most < n then return 'impossible', 'devices', most end
  return 'impossible', 'memory', string.format('%.0f', largest)
end
local verdict, why, figure = judge()

local known_id, known_ts = string.match(call('GET', key2('idem', nonce)) or '', '^(%d+):(%d+)$')
if known_id then return {'queued', known_id, known_ts, verdict == 'queued' and why or ''} end
if verdict == 'impossible' then return {verdict, why, figure} end

-- What does not say, while a GPU is known, is meant for a GPU: it must not find itself on a CPU because the last GPU
-- was withdrawn while it waited.
local meant = {}
if wish == '' and gpus_known() then shape, meant = shape .. ':gpu', {'meant', 'gpu'} end

local id = string.format('%.0f', call('INCR', P .. 'seq'))
local now = now_ms()
local stamp = string.format('%.0f', now)
call('SET', key2('idem', nonce), id .. ':' .. stamp, 'EX', 600)
call('HSET', job_key(id), 'st', 'queued', 'u', user, 'lv', lv, 'sh', shape, 'mem', mem, 'rq', requeue,
  'at', 0, 'ls', 0, 'ts', stamp)
call('SET', key2('s', id), spec)
call('ZADD', P .. 'live', id, id)
enqueue(id, lv, user, shape)
tell('submit', id, 'queued', now, 0, 0, '', 'spec', spec, unpack(meant))
ring('work')
return {verdict, id, stamp, why}
