-- Array indexes as ranges: 3-99,105-110:5. Goes before limits.lua and array.lua.
local parse_ranges, count_of
do
-- text -> {{first, last, step}, ...}
function parse_ranges(text)
  local ranges = {}
  for first, last, step in string.gmatch(text or '', '(%d+)%-?(%d*):?(%d*)') do
    first = tonumber(first)
    ranges[#ranges + 1] = {first, tonumber(last) or first, tonumber(step) or 1}
  end
  return ranges
end

function count_of(ranges)
  local count = 0
  for _, range in ipairs(ranges) do count = count + math.floor((range[2] - range[1]) / range[3]) + 1 end
  return count
end
end
