-- Until when a device takes jobs: its end, from which its drains hold (see ../drains.py), and its calendar reservations
-- (see gpuqueue.model.calendar). Goes before capacity.lua; SHARED in ../scripts.py lists the scripts that use it.
--
-- Before its end, a device takes only jobs that are over by then: by their time limit, else by how long nine of ten
-- earlier runs took (`want.lasts_s`, see device_filter.lua). A job of unknown duration is taken if it may run again.
--
-- For everybody but its users, a calendar reservation is such an end, until it is over.
local closing_of, end_for, is_holder, over_in_time
do
-- Return from when the drains in this text hold, in ms, 0 for a drain without such a time, nil for none; and the calendar
-- reservations that are not over, the first one first, nil for none.
function closing_of(text, now)
  if not text then return nil end
  local ok, drains = pcall(cjson.decode, text)
  if not ok or type(drains) ~= 'table' then return 0 end
  local first, calendar = nil, nil
  for origin, drain in pairs(drains) do
    if origin ~= 'calendar' then first = math.min(first or math.huge, type(drain) == 'table' and tonumber(drain.from) or 0) end
  end
  for _, each in ipairs(type(drains.calendar) == 'table' and drains.calendar or {}) do
    local whole_entry = type(each) == 'table' and type(each.users) == 'string' and tonumber(each.from)
    if whole_entry and now < (tonumber(each['until']) or 0) then
      calendar = calendar or {}
      calendar[#calendar + 1], cache.any_calendar = each, true
    end
  end
  return first, calendar
end

function is_holder(reservation, user)
  return user and string.find(',' .. reservation.users .. ',', ',' .. user .. ',', 1, true) ~= nil
end

-- Return from when a device with these takes no new job of this user; nil: never. user nil: of anybody without a
-- reservation.
function end_for(first, calendar, user)
  for _, each in ipairs(calendar or {}) do
    if not is_holder(each, user) then return math.min(first or math.huge, tonumber(each.from)) end
  end
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
