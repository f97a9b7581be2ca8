-- Renews my lease and RQ's record of me.
--
-- ARGV: 1 me, 2 my incarnation, 3 lease in milliseconds, 4 now (RQ's time format), 5 seconds RQ's records of me live,
--   6 what RQ is to show I do (busy, idle, suspended), then field, value, ... of my hash.
-- Answer: 1 renewed; 2 the lease had lapsed but nobody had buried me, so that it is mine again; 0 I was taken for dead;
--   3 renewed, and RQ has no record of me: register again with RQ.
--
-- RQ's record lives longer than the lease, names my incarnation, and goes when I am buried: that tells 2 from 0.

local me, incarnation = ARGV[1], ARGV[2]
local mine, rq = key('worker', me), key('rq_worker', me)
local current = redis.call('HGET', mine, 'incarnation')
local known = redis.call('HGET', rq, 'tokenloom')
local answer = 1
if not current and known == incarnation then
  answer = 2
elseif current ~= incarnation then
  return 0
end
redis.call('HSET', mine, 'incarnation', incarnation)
for i = 7, #ARGV, 2 do
  redis.call('HSET', mine, ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIRE', mine, ARGV[3])
redis.call('SADD', names.workers, me)
if known ~= incarnation then
  return 3
end
redis.call('HSET', rq, 'last_heartbeat', ARGV[4], 'state', ARGV[6])
redis.call('EXPIRE', rq, ARGV[5])
return answer
