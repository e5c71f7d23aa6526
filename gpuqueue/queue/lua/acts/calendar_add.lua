-- Reserve devices for some users, from a time until another. Nothing is changed if one of the devices is reserved then.
-- ARGV: id ('': a new one; else one that a worker restores)  users  from  until (ms)  why  by  grace_ms (of the runs of
--   others at the start)  most_ms ('': any; else the most that `by` may have reserved, summed over devices), then devices
-- returns {made, id} | {over} | {overlap, device, the other's id} | {many, device} | {budget, ms that are reserved}
local wrong = misfit {'id?', 'users', 'ms', 'ms', 'text', 'user', 'ms', 'passed'}
for i = 9, #ARGV do wrong = wrong or misfit({'device'}, i) end
if wrong or #ARGV < 9 or ARGV[2] == '' then return wrong or redis.error_reply('BADARGS no device or no user is named') end
local MOST = 50 -- reservations of one device: each claim there reads them
local id, users, from, till, why, by, grace_ms, most_ms = unpack(ARGV, 1, 8)
local now, starts, ends = now_ms(), tonumber(from), tonumber(till)
if ends <= now or ends <= starts then return {'over'} end

local reserved_ms, known = 0, {}
local texts = call('HGETALL', P .. 'drained')
for i = 1, #texts, 2 do
  local _, calendar = closing_of(texts[i + 1], now)
  known[texts[i]] = calendar
  for _, each in ipairs(calendar or {}) do
    if each.by == by then reserved_ms = reserved_ms + tonumber(each['until']) - math.max(now, tonumber(each.from)) end
  end
end
for i = 9, #ARGV do
  for _, each in ipairs(known[ARGV[i]] or {}) do
    if starts < tonumber(each['until']) and tonumber(each.from) < ends then return {'overlap', ARGV[i], each.id} end
  end
  if #(known[ARGV[i]] or {}) == MOST then return {'many', ARGV[i]} end
end
local more_ms = (#ARGV - 8) * (ends - math.max(now, starts))
if most_ms ~= '' and reserved_ms + more_ms > tonumber(most_ms) then return {'budget', whole(reserved_ms)} end

if id == '' then id = whole(call('INCR', P .. 'seq')) end -- as of a job: no id is given twice
for i = 9, #ARGV do
  local drains, calendar = drains_of(ARGV[i]), known[ARGV[i]] or {}
  calendar[#calendar + 1] = {id = id, users = users, from = whole(starts), ['until'] = whole(ends), why = why, by = by,
    at = whole(now), grace = grace_ms}
  table.sort(calendar, function(a, b) return tonumber(a.from) < tonumber(b.from) end)
  drains.calendar = calendar
  write_drains(ARGV[i], drains)
end
wake('room')
return {'made', id}
