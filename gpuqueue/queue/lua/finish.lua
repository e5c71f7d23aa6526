-- A run has ended and its processes are gone: give the memory back and say how it went.
-- arrow: starting -> succeeded
-- arrow: starting -> failed
-- arrow: running -> succeeded
-- arrow: running -> failed
-- arrow: cancelling -> cancelled
-- arrow: cancelling -> succeeded
-- arrow: cancelling -> failed
-- ARGV: id  token  state (an end)  ended (JSON for the book)  well (0|1)  against (devices)  why
-- returns 1 done | 0 stale
local wrong = expect {'id', 'token', 'word', 'text', 'flag', 'devices', 'text'}
local ENDS = {succeeded = true, failed = true, cancelled = true}
if not wrong and not ENDS[ARGV[3]] then wrong = redis.error_reply('BADARGS argument 3 is no end') end
if wrong then return wrong end
local id, token, state, ended, well, against, why = unpack(ARGV)
local job = read_job(id)
if not owns(job, token) then return 0 end
local now = now_ms()
pcall(count_deaths, id, job, now, well, against, why) -- the end itself must be told, whatever becomes of this
local ok, report = pcall(cjson.decode, ended)
local took_s = ok and type(report) == 'table' and tonumber(report.duration_s) or nil
free_devices(id, job, now, took_s and took_s >= 0 and took_s < 1e9 and took_s or nil)
local event = tell('finish', id, state, now, job.at, job.ls, '', 'token', token, 'ended', ended)
close(id, state, now, event)
ring('room')
return 1
