-- What a job says of its devices beside kind, pool and memory. Which scripts it stands before: SHARED in ../scripts.py.
--
-- It stands at the end of the job's shape, after the wish: flags:models:devices (see gpuqueue.model.placement.Placement).
--   flags    x it wants each device for itself, w all of its memory as well; s it spreads, p it packs
--   models   separated by '+'; each is words separated by '-', all of which a device's name must have
--   devices  UUIDs, separated by commas
local within, constraints, facts_of, of_model, is_named, belongs, undisturbed, alone_there
do
local STRANGERS_SHARE = 16 -- strangers may hold 1/16 of a whole device: a screen, the driver (as gpuqueue.model.placement)

function within(listed, word) return string.find(',' .. listed .. ',', ',' .. word .. ',', 1, true) ~= nil end

local NOTHING = {alone = false, whole = false}
-- -> {alone, whole, order: s | p | nil, models: {{word, ...}, ...} | nil, devices | nil}
function constraints(text)
  if text == '' then return NOTHING end
  local parsed = learned_of('constraints')
  local found = parsed[text]
  if found then return found end
  local flags, models, devices = string.match(text, '^(%a*):?([^:]*):?(.*)$')
  found = {alone = string.find(flags, 'x', 1, true) ~= nil, whole = string.find(flags, 'w', 1, true) ~= nil,
    order = string.match(flags, '[sp]')}
  if devices ~= '' then found.devices = devices end
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

-- What the workers of these devices told of them: device -> facts. Looked up all at once, and only where a job asks for it.
function facts_of(devices)
  local found, lacking = learned_of('facts'), {}
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

-- Is the device of one of these models? As gpuqueue.model.placement.fits_model.
function of_model(models, device)
  if not models then return true end
  local words_of = learned_of('words') -- device -> set of the words of its model's name
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

-- May a job with this wish, pool and constraints ever run on the device?
function belongs(wanted_pool, wish, want, device, pool, kind)
  if wanted_pool ~= '' and wanted_pool ~= pool or not suits(wish, kind) then return false end
  return want == NOTHING or (is_named(want.devices, device) and of_model(want.models, device))
end

-- Could it be given to the job alone, were none of our runs there? Strangers do not go because we wish it.
function undisturbed(want, foreign, total) return not want.whole or foreign * STRANGERS_SHARE <= total end

-- Would the job be alone there, if it wants to be?
function alone_there(want, runs, foreign, total)
  return not want.alone or (runs == 0 and undisturbed(want, foreign, total))
end
end
