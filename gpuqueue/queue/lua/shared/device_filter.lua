-- Device filter of a job, beside device kind, pool and memory. SHARED in ../scripts.py lists the scripts that use it.
--
-- The filter is the last part of a shape, after the device kind: flags:models:devices:hosts (see
-- gpuqueue.model.placement.Placement). The hosts are those that could not start the job (exclusions.lua); no request
-- has any.
--   flags    x exclusive devices; w their whole memory too (almost no external processes); s spread; p pack; l least busy;
--            d and how long it probably takes in seconds if that is below its time limit; without either, o if the job
--            must not run twice (device_end.lua)
--   models   separated by '+'; each is words separated by '-', all of which must be in a device's name
--   devices  UUIDs, separated by commas
--   hosts    names of excluded hosts, separated by commas
local within, constraints, facts_of, of_model, is_named, is_excluded, belongs, undisturbed, alone_there
do
local EXTERNAL_SHARE = 16 -- external processes may hold 1/16 of a whole device: a screen, the driver

function within(listed, word) return string.find(',' .. listed .. ',', ',' .. word .. ',', 1, true) ~= nil end

local NOTHING = {alone = false, whole = false}
-- -> {alone, whole, order: s | p | l | nil, lasts_s | nil, once, models: {{word, ...}, ...} | nil, devices | nil,
-- excluded | nil}
function constraints(text)
  if text == '' then return NOTHING end
  local parsed = cache_of('constraints')
  local found = parsed[text]
  if found then return found end
  local flags, models, devices, hosts = string.match(text, '^(%w*):?([^:]*):?([^:]*):?(.*)$')
  found = {alone = string.find(flags, 'x', 1, true) ~= nil, whole = string.find(flags, 'w', 1, true) ~= nil,
    order = string.match(flags, '[spl]'), lasts_s = tonumber(string.match(flags, 'd(%d+)')), once = string.find(flags, 'o', 1, true) ~= nil}
  if devices ~= '' then found.devices = devices end
  if hosts ~= '' then found.excluded = hosts end
  if models ~= '' then
    found.models = {}
    for model in string.gmatch(models, '[^+]+') do
      local words = {}
      for word in string.gmatch(model, '[^-]+') do words[#words + 1] = word end
      found.models[#found.models + 1] = words
    end
  end
  parsed[text] = found
  return found
end

-- Return the facts that workers reported of these devices: device -> facts. Read all at once, and only if a job filters
-- by facts.
function facts_of(devices)
  local found, lacking = cache_of('facts'), {}
  for i = 1, #devices do
    if not found[devices[i]] then lacking[#lacking + 1] = devices[i] end
  end
  local texts = #lacking > 0 and call('HMGET', P .. 'facts', unpack(lacking))
  for i = 1, #lacking do
    local ok, facts = pcall(cjson.decode, texts[i] or '')
    found[lacking[i]] = ok and type(facts) == 'table' and facts or {}
  end
  return found
end

-- Return whether the device is of one of these models. Same rule as gpuqueue.model.placement.fits_model.
function of_model(models, device)
  if not models then return true end
  local words_of = cache_of('words') -- device -> set of the words in its model name
  local words = words_of[device]
  if not words then
    words = {}
    local its = facts_of({device})[device].device
    local name = type(its) == 'table' and its.name
    for word in string.gmatch(string.lower(type(name) == 'string' and name or ''), '[a-z0-9.]+') do words[word] = true end
    words_of[device] = words
  end
  for i = 1, #models do
    local fits = true
    for k = 1, #models[i] do fits = fits and words[models[i][k]] end
    if fits then return true end
  end
  return false
end

function is_named(devices, device) return not devices or within(devices, device) end

function is_excluded(want, host) return want.excluded and within(want.excluded, host) end

-- Return whether a job with this pool, device kind and filter may ever run on the device.
function belongs(wanted_pool, wanted_kind, want, host, device, pool, kind)
  if wanted_pool ~= '' and wanted_pool ~= pool or not suits(wanted_kind, kind) then return false end
  return want == NOTHING
    or (is_named(want.devices, device) and of_model(want.models, device) and not is_excluded(want, host))
end

-- Return whether the device could be exclusive for the job if none of our runs were there. External processes do not
-- leave on request.
function undisturbed(want, external, total) return not want.whole or external * EXTERNAL_SHARE <= total end

-- Return whether the job would be alone there, or does not ask to be.
function alone_there(want, runs, external, total)
  return not want.alone or (runs == 0 and undisturbed(want, external, total))
end
end
