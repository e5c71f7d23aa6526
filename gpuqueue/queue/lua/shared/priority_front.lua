-- The order of one user's jobs: each has a position, its id; a job that was moved to the front has a number below 0,
-- lower the later it was moved (`front` of `meta` counts the moves). Fair share between users does not use positions.
local move_to
do
-- Move a job to the position of the front-th moved job, or with nil back to its position by arrival.
function move_to(id, job, front)
  if front then call('HSET', job_key(id), F.front, front) else call('HDEL', job_key(id), F.front) end
  local queue = queue_key(job.priority, job.user, job.shape)
  if not call('ZSCORE', queue, id) then return end -- not in a queue now; it gets this position when queued
  call('ZADD', queue, place_of(id), id)
  call('ZADD', key3('us', job.priority, job.user), call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2], job.shape)
  call('DEL', key3('ub', job.priority, job.user))
end
end
