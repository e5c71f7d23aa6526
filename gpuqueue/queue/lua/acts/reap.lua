-- Recover runs whose lease expired. Any process may call this, as often as it likes.
-- A reaper that was away (or whose store was) cannot know which workers tried to send heartbeats meanwhile: after a gap
-- in its own ticks all leases get one more lease period.
-- The pause after a rebuild (rebuild_finish.lua) counts only time in which the store was up: no worker could offer a
-- run otherwise.
-- The clock may be set, forward or back. Live leases are renewed by the next heartbeat in any case. The other leases,
-- whose worker is dead or away on purpose, are shifted. The clock was set if it went back, or if much less time passed
-- on the caller's own clock.
-- arrow: starting -> queued
-- arrow: starting -> held
-- arrow: starting -> lost
-- arrow: running -> queued
-- arrow: running -> held
-- arrow: running -> lost
-- arrow: cancelling -> cancelled
-- ARGV: loss_limit  lease_ms  tick_ms  most  passed_ms (since the caller's last tick, by its own clock; '' unknown)
-- returns {id, state after, ...}
local wrong = expect {'count', 'ms', 'ms', 'count', 'passed'}
if wrong then return wrong end
local loss_limit, lease_ms, tick_ms, most, passed_ms = unpack(ARGV)
local now = now_ms()
local last = tonumber(call('HGET', P .. 'meta', 'reap') or 0)
-- passed_ms counts from this caller's last tick, so it is never shorter than the time since any reaper's
local passed = tonumber(passed_ms or '') or now - last
local was_away = now - last > 3 * tick_ms
local was_set = last > 0 and (now < last - tick_ms or now - last > passed + 3 * tick_ms)
if was_set then
  local by = whole(now < last and now - last or now - last - passed)
  for _, id in ipairs(call('ZRANGE', P .. 'leases', 0, -1)) do call('ZINCRBY', P .. 'leases', by, id) end
end
-- meta 'grace' and 'claims' are times: no run is reaped, and no job is claimed, before them
if was_away or was_set then call('HSET', P .. 'meta', 'grace', whole(now + lease_ms)) end
local seen = math.max(last, tonumber(call('HGET', P .. 'meta', 'opened') or 0)) -- last time at which the store was surely up
if meta().claims > seen and math.abs(now - seen) > 3 * tick_ms then
  set_meta('claims', whole(meta().claims + now - seen))
end
local went_by = (was_away or was_set) and 0 or math.max(0, now - last)
set_meta('reap', whole(now), 'fair', whole(fair_ms(now) + went_by))
limit_exponents(fair_ms(now))
queue_due(now)
if now < tonumber(call('HGET', P .. 'meta', 'grace') or 0) then return {} end
local out = {}
for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'leases', '-inf', whole(now), 'LIMIT', 0, most)) do
  local job = read_job(id)
  if ACTIVE[job.state] then
    out[#out + 1] = id
    out[#out + 1] = lose(id, job, now, tonumber(loss_limit), 'no heartbeat renewed the lease in time')
  else
    call('ZREM', P .. 'leases', id)
  end
end
return out
