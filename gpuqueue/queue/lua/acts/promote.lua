-- Promote jobs that have waited long by one priority, so that no priority starves another. Never to the highest, which
-- only users assign. Any process may call this, as often as it likes. A user's jobs of one shape are promoted in their
-- order.
-- ARGV: after_ms (for each priority)  most (jobs promoted at once)
-- returns how many jobs were promoted
local wrong = expect {'ms', 'count'}
if wrong then return wrong end
local after_ms, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local now, promoted = now_ms(), 0
local last = last_id_before(now - after_ms)

local function promote(id, priority, user, shape)
  local j = call('HMGET', job_key(id), F.promotions, F.attempts, F.losses)
  local times, since = to_count(j[1]), waits_since(id, now)
  if not since or now - since < after_ms * (times + 1) then return false end
  local above = tostring(tonumber(priority) + 1)
  leave_queue(id, priority, user, shape) -- its reservation stays
  call('HSET', job_key(id), F.priority, above, F.promotions, times + 1)
  enqueue(id, above, user, shape)
  record_event('promote', id, 'queued', now, to_count(j[2]), to_count(j[3]), '', 'priority', above)
  promoted = promoted + 1
  return true
end

for _, priority in ipairs({'1', '0'}) do -- highest first: no job is promoted twice
  for _, user in ipairs(call('ZRANGE', key2('ul', priority), 0, -1)) do
    local shapes = call('ZRANGE', key3('us', priority, user), '-inf', whole(last), 'BYSCORE')
    for _, shape in ipairs(shapes) do
      while promoted < most do
        local id = call('ZRANGE', queue_key(priority, user, shape), 0, 0)[1]
        if not id or tonumber(id) > last or not promote(id, priority, user, shape) then break end
      end
    end
  end
end
if promoted > 0 then wake('work') end
return promoted
