-- Drain devices: they take no new job, and their runs continue. A repeated drain by the same origin replaces the
-- reason.
-- ARGV: origin (person, deaths, down)  why  by, then the devices
local wrong = misfit {'word', 'text', 'text'}
for i = 4, #ARGV do wrong = wrong or misfit({'device'}, i) end
if wrong then return wrong end
local origin, why, by = unpack(ARGV, 1, 3)
for i = 4, #ARGV do drain(ARGV[i], origin, why, by, now_ms()) end
return 1
