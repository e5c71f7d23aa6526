-- The priority of a run that does not use its devices.

-- Return whether the priority of a run with this mark counts as low (../acts/idle.lua writes the mark).
local function counts_as_low(mark) return string.find(mark or '', ':low', 1, true) ~= nil end
