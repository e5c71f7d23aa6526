-- Whether any known device could ever run a job. Goes before submit.lua and edit.lua.
local WANTED_KINDS = {[''] = true, gpu = true, cpu = true, any = true, slurm = true}

-- Fix the device kind of a request. One without a device kind, submitted while a GPU is known, means a GPU: it must not
-- start on a CPU because the last GPU was withdrawn meanwhile. -> shape, event fields for the history
local function meant(shape, wanted_kind)
  if wanted_kind ~= '' or not gpus_known() then return shape, {} end
  return (string.gsub(shape, '^(%d+:%d+:%d+:[^:]*):?', '%1:gpu', 1)), {'meant', 'gpu'}
end

-- Judge a request. An unknown device does not make it impossible: a host that is down for an hour has withdrawn its
-- devices.
-- -> 'queued', '', or 'cpu' (the job may run on a CPU because no GPU was found), 'device' or 'no_gpu' (no known device
-- may run it; the latter: a host has lost its GPUs) | 'impossible', why, figure
local function judge(user, priority, shape)
  local asked, _, n, pool, wanted_kind, more = parse_shape(shape) -- rounded up, as the claim compares it
  local want = constraints(more)
  local urgent = call('HGET', P .. 'meta', 'urgent') or '*'
  if priority == '3' and urgent ~= '*' and not string.find(',' .. urgent .. ',', ',' .. user .. ',', 1, true) then
    return 'impossible', 'urgent', 0
  end
  local in_pool, largest, most, parts, anything, of_models, named, lost, on = 0, 0, 0, 0, false, false, false, false, ''
  local candidates, fitting = {}, {} -- by host and kind: all devices of a job are on one host and of one kind
  local is_possible = any_device(function(device, host, total, headroom, _, _, _, its_pool, kind)
    anything = true
    named = named or (want.devices and is_named(want.devices, device))
    if pool ~= '' and pool ~= its_pool then return false end
    in_pool, lost = in_pool + 1, lost or kind == 'cpu-lost'
    of_models = of_models or of_model(want.models, device)
    if not belongs(pool, wanted_kind, want, host, device, its_pool, kind) then return false end
    if n > 1 and kind == 'mig' then
      parts = parts + 1 -- a CUDA process can use only one part of a GPU
      return false
    end
    local on_host = host .. ' ' .. kind
    candidates[on_host] = (candidates[on_host] or 0) + 1
    largest, most = math.max(largest, total - headroom), math.max(most, candidates[on_host])
    if total - headroom >= asked then fitting[on_host], on = (fitting[on_host] or 0) + 1, kind end
    return fitting[on_host] == n
  end)
  if is_possible then return 'queued', wanted_kind == '' and on == 'cpu-auto' and 'cpu' or '' end
  -- A site that borrows GPUs from an engine may have any tomorrow.
  local may_be_lent = not named and not is_cpu(wanted_kind) and not is_engine(wanted_kind)
  if may_be_lent and call('HGET', P .. 'meta', 'borrows') == '1' then return 'queued', lost and 'no_gpu' or 'device' end
  if anything and in_pool == 0 then return 'impossible', 'pool', 0 end
  if in_pool > 0 and not of_models and not lost then return 'impossible', 'model', 0 end
  if named and most + parts == 0 then return 'impossible', 'named', 0 end
  if parts > 0 and most < n then return 'impossible', 'mig', 0 end
  if most == 0 then return 'queued', lost and 'no_gpu' or 'device' end
  if most < n then return 'impossible', 'devices', most end
  return 'impossible', 'memory', whole(largest)
end
