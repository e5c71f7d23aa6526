-- Handle the runs of a host that an administrator declares lost: each is lost, without the wait for its lease.
-- arrow: starting -> queued
-- arrow: starting -> held
-- arrow: starting -> lost
-- arrow: running -> queued
-- arrow: running -> held
-- arrow: running -> lost
-- arrow: cancelling -> cancelled
-- ARGV: host  who declared it lost ('': not known)  loss_limit  silent_ms (least age of the last heartbeat of its devices)
-- returns {id, state after, ...}; '' if no device of this host is known; else the age of the last heartbeat in ms, as
--   text, if it is below silent_ms
local wrong = expect {'host', 'by', 'count', 'ms'}
if wrong then return wrong end
local host, by, loss_limit, silent_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local records = call('HGETALL', key2('dev', host))
if #records == 0 then return '' end
local now = now_ms()
for i = 2, #records, 2 do
  local _, _, _, seen = parse_record(records[i])
  local age = math.abs(now - (tonumber(seen) or 0))
  if age < silent_ms then return string.format('%.0f', age) end
end
call('HDEL', P .. 'machines', host) -- a reinstalled machine has another id: see machines.lua
local out = {}
for i = 1, #records, 2 do
  for _, id in ipairs(call('HKEYS', key2('dl', records[i]))) do
    local job = read_job(id)
    if ACTIVE[job.state] then -- a run on several devices is lost at the first
      out[#out + 1] = id
      out[#out + 1] = lose(id, job, now, loss_limit, 'its host was declared lost' .. (by == '' and '' or ' by ' .. by))
    end
  end
end
return out
