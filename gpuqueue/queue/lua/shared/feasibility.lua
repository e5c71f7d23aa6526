-- Whether any known device could ever run a job. Goes before submit.lua and edit.lua.
local WISHES = {[''] = true, gpu = true, cpu = true, any = true}

-- Fix the device kind of a request. One without a device kind, submitted while a GPU is known, means a GPU: it must not
-- start on a CPU because the last GPU was withdrawn meanwhile. -> shape, event fields for the history
local function meant(shape, wish)
  if wish ~= '' or not gpus_known() then return shape, {} end
  return (string.gsub(shape, '^(%d+:%d+:%d+:[^:]*):?', '%1:gpu', 1)), {'meant', 'gpu'}
end

-- Judge a request. An unknown device does not make it impossible: a host that is down for an hour has withdrawn its
-- devices.
-- -> 'queued', '' or 'device' | 'impossible', why, figure
local function judge(user, lv, shape)
  local asked, _, n, pool, wish, more = parse_shape(shape) -- rounded up, as the claim compares it
  local want = constraints(more)
  local urgent = call('HGET', P .. 'meta', 'urgent') or '*'
  if lv == '3' and urgent ~= '*' and not string.find(',' .. urgent .. ',', ',' .. user .. ',', 1, true) then
    return 'impossible', 'urgent', 0
  end
  local in_pool, largest, most, parts, anything, of_models, named = 0, 0, 0, 0, false, false, false
  local hosts = call('SMEMBERS', P .. 'hosts')
  for h = 1, #hosts do
    local records = call('HGETALL', key2('dev', hosts[h]))
    local candidates, fitting = {}, {} -- by kind: one job never mixes kinds
    for i = 1, #records, 2 do
      local total, headroom, _, _, _, its_pool, kind = parse_record(records[i + 1])
      anything = anything or total ~= nil
      named = named or (want.devices and is_named(want.devices, records[i]))
      if total and (pool == '' or pool == its_pool) then
        in_pool = in_pool + 1
        of_models = of_models or of_model(want.models, records[i])
        local meant = belongs(pool, wish, want, records[i], its_pool, kind)
        if meant and n > 1 and kind == 'mig' then
          parts = parts + 1 -- a CUDA process can use only one part of a GPU
        elseif meant then
          local offer = total - headroom
          candidates[kind] = (candidates[kind] or 0) + 1
          largest, most = math.max(largest, offer), math.max(most, candidates[kind])
          if offer >= asked then fitting[kind] = (fitting[kind] or 0) + 1 end
          if fitting[kind] == n then return 'queued', '' end
        end
      end
    end
  end
  if anything and in_pool == 0 then return 'impossible', 'pool', 0 end
  if in_pool > 0 and not of_models then return 'impossible', 'model', 0 end
  if named and most + parts == 0 then return 'impossible', 'named', 0 end
  if parts > 0 and most < n then return 'impossible', 'mig', 0 end
  if most == 0 then return 'queued', 'device' end
  if most < n then return 'impossible', 'devices', most end
  return 'impossible', 'memory', string.format('%.0f', largest)
end
