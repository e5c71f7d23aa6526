-- How long devices are idle because they are reserved: what reservations cost. Goes before reserve.lua.
local count_idle
do
local function number(text) return tonumber(string.match(text or '', '^%d+%.?%d*$') or '') or 0 end

-- Add the time since the last call, times what was idle after it, to a sum in `meta`, and record what is idle now. The
-- unit is a device: of each, the part that is both reserved (`needs`: device -> bytes) and free. The clock is that of
-- usage, which stops while no worker runs and while the store is away.
function count_idle(devices, needs, now)
  local idle, at = 0, fair_ms(now)
  for _, device in ipairs(devices) do
    local free = math.max(0, math.min(device.free, needs[device.name] or 0))
    idle = idle + free / math.max(1, device.capacity)
  end
  local was, since, sum = unpack(call('HMGET', P .. 'meta', 'reserved_idle', 'reserved_idle_at', 'reserved_idle_ms'))
  was = number(was)
  if was == 0 and idle == 0 then return end
  sum = number(sum) + was * math.max(0, at - number(since))
  set_meta('reserved_idle', string.format('%.3f', idle), 'reserved_idle_at', whole(at), 'reserved_idle_ms', whole(sum))
end
end
