-- Keeps the executions of a worker's jobs alive in RQ's eyes. An execution that is gone is left gone.
--
-- ARGV: 1 me, 2 now (RQ's time format), 3 now (unix seconds), 4 seconds until RQ may call an execution abandoned,
--   then job id, execution id, origin, ...
-- Answer: how many were refreshed.

local me, now, ttl = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local refreshed = 0
for i = 5, #ARGV, 3 do
  local id, execution, origin = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local record = key('execution', id, execution)
  if redis.call('EXISTS', record) == 1 then
    redis.call('HSET', record, 'last_heartbeat', ARGV[3])
    redis.call('EXPIRE', record, ttl)
    redis.call('ZADD', key('executions', id), 'XX', now + ttl + 60, execution)
    redis.call('EXPIRE', key('executions', id), ttl + 60)
    redis.call('ZADD', key('wip', origin), 'XX', now + ttl, id .. ':' .. execution)
    if redis.call('EXISTS', key('job', id)) == 1 then
      redis.call('HSET', key('job', id), 'last_heartbeat', ARGV[2])
    end
    refreshed = refreshed + 1
  end
end
redis.call('EXPIRE', key('rq_executions', me), ttl + 60)
return refreshed
