-- Handle a run whose ending is unknown: its shim is gone, or it fenced itself. Called by the worker of its host.
-- arrow: starting -> queued
-- arrow: starting -> held
-- arrow: starting -> lost
-- arrow: running -> queued
-- arrow: running -> held
-- arrow: running -> lost
-- arrow: cancelling -> cancelled
-- ARGV: id  token  loss_limit  detail  well (0|1)  against (devices)  why
-- returns the state after, or '' if stale
local wrong = expect {'id', 'token', 'count', 'text', 'flag', 'devices', 'text'}
if wrong then return wrong end
local id, token, loss_limit, detail, well, against, why = unpack(ARGV)
local job = read_job(id)
if not owns(job, token) then return '' end
local now = now_ms()
pcall(count_deaths, id, job, now, well, against, why) -- the end must be recorded even if this fails
return lose(id, job, now, tonumber(loss_limit), detail)
