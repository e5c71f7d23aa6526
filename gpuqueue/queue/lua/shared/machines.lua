-- Which machine a host name belongs to. Two machines with one name would take each other's jobs and devices. SHARED in
-- ../scripts.py lists the scripts that use this part.
--
-- A name stays with its machine, also while that is down. Another machine gets it once the first one has no device in
-- the queue any more: `down` withdraws those without a job. It also gets the name if each device has been silent for a
-- lease and holds no run: the machine was reinstalled, or is gone. `gpuqueue lost` frees the name at once.
local taken_by

-- Give the name `host` to this machine (its id; '': unknown, not checked) if it is free. -> nil | the other machine's id
function taken_by(host, machine, lease_ms, now)
  local owner = machine ~= '' and call('HGET', P .. 'machines', host)
  if machine == '' or owner == machine then return nil end
  local records = owner and call('HGETALL', key2('dev', host)) or {}
  for i = 1, #records, 2 do
    local _, _, _, seen = parse_record(records[i + 1])
    if math.abs(now - (tonumber(seen) or now)) <= tonumber(lease_ms) or call('EXISTS', key2('dl', records[i])) == 1 then
      return owner
    end
  end
  for i = 1, #records, 2 do -- devices of the machine that is gone
    call('HDEL', key2('dev', host), records[i])
    for _, about in ipairs({'facts', 'deaths', 'seen'}) do call('HDEL', P .. about, records[i]) end
  end
  call('HSET', P .. 'machines', host, machine)
  return nil
end
