-- How long devices are idle because they are reserved: what reservations cost. Goes before reserve.lua.
local charge_idle, note_idle
do
local function number(text) return tonumber(string.match(text or '', '^%d+%.?%d*$') or '') or 0 end

-- Add the time since note_idle, times what was idle then, to a sum in `meta`. The clock is that of usage, which stops
-- while no worker runs and while the store is away. Nothing is reserved (`reserve_at`) until what was idle is this part
-- of `count` devices on average; 0: any.
function charge_idle(part, count, now)
  if part == 0 then call('HDEL', P .. 'meta', 'reserve_at') end
  local was, since, sum, from = unpack(call('HMGET', P .. 'meta', 'reserved_idle', 'reserved_idle_at', 'reserved_idle_ms',
    'reserve_at'))
  local at = fair_ms(now)
  local passed = math.max(0, at - number(since))
  local cost = number(was) * passed
  if cost == 0 then return end
  set_meta('reserved_idle_at', whole(at), 'reserved_idle_ms', whole(number(sum) + cost))
  if part > 0 and count > 0 then
    set_meta('reserve_at', whole(math.floor(math.max(number(from), now - passed) + cost / part / count)))
  end
end

-- Record what is idle now, in devices: of each, the part that is both reserved (`needs`: device -> bytes) and free.
function note_idle(devices, needs, now)
  local idle = 0
  for _, device in ipairs(devices) do
    local free = math.max(0, math.min(device.free, needs[device.name] or 0))
    idle = idle + free / math.max(1, device.capacity)
  end
  if idle == 0 and number(call('HGET', P .. 'meta', 'reserved_idle')) == 0 then return end
  set_meta('reserved_idle', string.format('%.3f', idle), 'reserved_idle_at', whole(fair_ms(now)))
end
end
