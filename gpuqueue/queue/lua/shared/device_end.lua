-- The end of a device: the time from which its drains hold (see ../drains.py). Goes after device_filter.lua, before
-- capacity.lua; SHARED in ../scripts.py lists the scripts that use it.
--
-- Before its end, a device takes only jobs that are over by then: by their time limit, else by how long nine of ten
-- earlier runs took (`want.lasts_s`, see device_filter.lua). A job of unknown duration is taken if it may run again.
local end_of, over_in_time
do
-- Return from when the drains in this text hold, in ms: 0 for a drain without such a time; nil for no text.
function end_of(text)
  if not text then return nil end
  local ok, drains = pcall(cjson.decode, text)
  if not ok or type(drains) ~= 'table' then return 0 end
  local first = math.huge
  for _, drain in pairs(drains) do first = math.min(first, type(drain) == 'table' and tonumber(drain.from) or 0) end
  return first
end

-- Return whether a job that starts at this time is over before the end of a device (nil: it has none).
function over_in_time(asks, start, ends)
  if not ends then return true end
  local lasts_s = asks.limit_s > 0 and asks.limit_s or asks.want.lasts_s
  if lasts_s then return start + lasts_s * 1000 + GONE_MS <= ends end
  return start < ends and not asks.want.once
end
end
