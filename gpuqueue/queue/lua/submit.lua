-- Put a job into the queue, unless no device could ever run it.
-- arrow: none -> queued
-- ARGV: user  level  mem  shape  requeue (0|1)  spec  nonce
-- returns {'queued', id, ms} | {'impossible', largest bytes of one device, most devices of one host} (in the pool)
local user, lv, mem, shape, requeue, spec, nonce = unpack(ARGV)
if not call('GET', P .. 'epoch') then return redis.error_reply('NOTOPEN the store was never opened') end
local known_id, known_ts = string.match(call('GET', key2('idem', nonce)) or '', '^(%d+):(%d+)$')
if known_id then return {'queued', known_id, known_ts} end

local need, _, n, pool = parse_shape(shape)
if not need or not string.match(mem, '^%d+$') or not string.match(lv, '^[0-3]$') then
  return redis.error_reply('BADSHAPE ' .. shape) -- a script's writes are not undone: judge before the first
end
local function possible()
  local largest, most, seen = 0, 0, false
  local hosts = call('SMEMBERS', P .. 'hosts')
  for h = 1, #hosts do
    local records = call('HVALS', key2('dev', hosts[h]))
    local fitting, candidates = 0, 0
    for i = 1, #records do
      local total, headroom, its_pool = string.match(records[i], '^(%d+):(%d+):%d+:%d+:%d+:(.*)$')
      seen = true
      if pool == '' or pool == its_pool then
        local offer = total - headroom
        candidates, largest = candidates + 1, math.max(largest, offer)
        if offer >= tonumber(mem) then fitting = fitting + 1 end
      end
    end
    most = math.max(most, candidates)
    if fitting >= n then return true end
  end
  return not seen, largest, most -- with no device known yet nothing can be called impossible
end
local fits, largest, most = possible()
if not fits then return {'impossible', string.format('%.0f', largest), most} end

local id = string.format('%.0f', call('INCR', P .. 'seq'))
local now = now_ms()
local stamp = string.format('%.0f', now)
call('SET', key2('idem', nonce), id .. ':' .. stamp, 'EX', 600)
call('HSET', job_key(id), 'st', 'queued', 'u', user, 'lv', lv, 'sh', shape, 'mem', mem, 'rq', requeue,
  'at', 0, 'ls', 0, 'ts', stamp)
call('SET', key2('s', id), spec)
call('ZADD', P .. 'live', id, id)
enqueue(id, lv, user, shape)
tell('submit', id, 'queued', now, 0, 0, '', 'spec', spec)
ring('work')
return {'queued', id, stamp}
