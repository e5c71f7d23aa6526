-- Let devices take no new job. What runs on them goes on. Said again by the same origin, the newest words count.
-- ARGV: origin (person, deaths, down)  why  by, then the devices
local wrong = misfit {'word', 'text', 'text'}
for i = 4, #ARGV do wrong = wrong or misfit({'device'}, i) end
if wrong then return wrong end
local origin, why, by = unpack(ARGV, 1, 3)
for i = 4, #ARGV do drain(ARGV[i], origin, why, by, now_ms()) end
return 1
