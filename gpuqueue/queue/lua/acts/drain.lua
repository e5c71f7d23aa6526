-- Drain devices: from a time on they take no new job, and their runs continue. Before that time they take only jobs that
-- are over by then (device_end.lua). A repeated drain by the same origin replaces the reason and the time.
-- ARGV: origin (person, deaths, down, until)  why  by  from (ms; '': at once), then the devices
local wrong = misfit {'word', 'text', 'text', 'passed'}
for i = 5, #ARGV do wrong = wrong or misfit({'device'}, i) end
if wrong then return wrong end
local origin, why, by, from = unpack(ARGV, 1, 4)
for i = 5, #ARGV do drain(ARGV[i], origin, why, by, now_ms(), tonumber(from)) end
if from ~= '' then wake('room') end -- there may be more time than before
return 1
