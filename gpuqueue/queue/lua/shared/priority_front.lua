-- A user's own jobs go by their places: each has its id for one, and a job that was moved to the front a number below 0,
-- the lower the later it was moved (`front` of `meta` counts them). Fair share between users knows nothing of places.
local move_to
do
-- Let a job have the place of the front-th that was moved to the front, or nil: that by arrival.
function move_to(id, job, front)
  if front then call('HSET', job_key(id), 'fr', front) else call('HDEL', job_key(id), 'fr') end
  local queue = queue_key(job.lv, job.u, job.sh)
  if not call('ZSCORE', queue, id) then return end -- it stands aside, and will come in at its place
  call('ZADD', queue, place_of(id), id)
  call('ZADD', key3('us', job.lv, job.u), call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2], job.sh)
  call('DEL', key3('ub', job.lv, job.u))
end
end
