-- Looks after jobs that a worker has taken: whether somebody wants them to end, and that RQ finds the worker in them.
--
-- ARGV: 1 me, 2 lease in milliseconds, then job id, execution id, ...
-- Answer: for each job 0, or 1 when it was cancelled or deleted, or 2 when it is to be stopped.

local me, lease = ARGV[1], tonumber(ARGV[2])
local answer = {}
for i = 3, #ARGV, 2 do
  local job = key('job', ARGV[i])
  local now = redis.call('HMGET', job, 'status', 'worker_name', 'tokenloom_stop')
  if redis.call('EXISTS', key('execution', ARGV[i], ARGV[i + 1])) == 1 and (now[2] == me or not now[2]) then
    if not now[2] and now[1] == 'started' then
      redis.call('HSET', job, 'worker_name', me) -- it had lapsed, like the lease, and nobody took over
    end
    lapse_name(job, lease)
  end
  answer[#answer + 1] = (not now[1] or now[1] == 'canceled') and 1 or now[3] == '1' and 2 or 0
end
return answer
