-- The priority of a run that does not use its devices.

-- Return whether the priority of a run with these marks counts as low (../acts/run_mark.lua writes them).
local function counts_as_low(marks) return string.find(marks or '', '"low":true', 1, true) ~= nil end
