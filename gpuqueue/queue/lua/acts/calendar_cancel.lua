-- Cancel a calendar reservation on all its devices; one that has begun ends now.
-- ARGV: id  user ('': an admin; else one who may cancel only what this account made or is for it)
-- returns how many devices were reserved by it | refused
local wrong = expect {'id', 'by'}
if wrong then return wrong end
local id, user, count = ARGV[1], ARGV[2], 0
local now, texts = now_ms(), call('HGETALL', P .. 'drained')
for i = 1, #texts, 2 do
  local _, calendar = closing_of(texts[i + 1], now)
  local kept = {}
  for _, each in ipairs(calendar or {}) do
    if each.id ~= id then kept[#kept + 1] = each
    elseif user ~= '' and each.by ~= user and each.users ~= user then return 'refused' end
  end
  if calendar and #kept < #calendar then
    local drains = drains_of(texts[i])
    drains.calendar = #kept > 0 and kept or nil
    write_drains(texts[i], drains)
    count = count + 1
  end
end
if count > 0 then wake('room') end
return count
