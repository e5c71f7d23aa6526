-- Forget the jobs that ended up to an event, and trim the outbox: the history has all of that.
-- ARGV: ms  n (the two halves of the event's id)
-- returns how many jobs were forgotten
local wrong = expect {'count', 'count'}
if wrong then return wrong end
local ms, n = tonumber(ARGV[1]), tonumber(ARGV[2])
local forgotten = 0
call('HSET', P .. 'meta', 'recorded', ARGV[1] .. '-' .. ARGV[2]) -- a history with less than this lost data
for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'ended', '-inf', ARGV[1])) do
  local j = call('HMGET', job_key(id), F.end_event, F.dedupe_key, F.user)
  local ev_ms, ev_n = string.match(j[1] or '0-0', '^(%d+)-(%d+)$')
  ev_ms, ev_n = tonumber(ev_ms) or 0, tonumber(ev_n) or 0 -- a damaged entry is forgotten too
  if ev_ms < ms or (ev_ms == ms and ev_n <= n) then
    local key = j[2] and (j[3] or '') .. ' ' .. j[2]
    if key and call('HGET', P .. 'keys', key) == id then call('HDEL', P .. 'keys', key) end
    call('DEL', job_key(id), key2('s', id))
    call('ZREM', P .. 'ended', id)
    call('ZREM', P .. 'live', id)
    forgotten = forgotten + 1
  end
end
call('XTRIM', P .. 'ev', 'MINID', string.format('%.0f-%.0f', ms, n + 1))
return forgotten
