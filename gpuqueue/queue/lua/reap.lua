-- Take back the leases that nobody renewed. Anybody may run this, as often as they like.
-- A reaper that was away (or whose store was) cannot know who tried to beat meanwhile: after a gap in its own
-- ticks everybody gets one more lease period.
-- arrow: starting -> queued
-- arrow: starting -> held
-- arrow: starting -> lost
-- arrow: running -> queued
-- arrow: running -> held
-- arrow: running -> lost
-- arrow: cancelling -> cancelled
-- ARGV: loss_limit  lease_ms  tick_ms  most
-- returns {id, state after, ...}
local loss_limit, lease_ms, tick_ms, most = unpack(ARGV)
local now = now_ms()
local meta = P .. 'meta'
local last = tonumber(call('HGET', meta, 'reap') or 0)
call('HSET', meta, 'reap', string.format('%.0f', now))
if now - last > 3 * tick_ms then call('HSET', meta, 'grace', string.format('%.0f', now + lease_ms)) end
if now < tonumber(call('HGET', meta, 'grace') or 0) then return {} end
local out = {}
for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'leases', '-inf', string.format('%.0f', now), 'LIMIT', 0, most)) do
  local job = read_job(id)
  if ACTIVE[job.st] then
    out[#out + 1] = id
    out[#out + 1] = lose(id, job, now, tonumber(loss_limit), 'no worker vouched for it in time')
  else
    call('ZREM', P .. 'leases', id)
  end
end
return out
