-- Writes down that a job is to be stopped, for whoever takes it should its worker not get to it; its end clears that.
--
-- ARGV: 1 job id, 2 id of the execution that was told to stop.
-- Answer: 1; 0 when that execution is over, and nothing was written.

if redis.call('EXISTS', key('execution', ARGV[1], ARGV[2])) == 0 or redis.call('EXISTS', key('job', ARGV[1])) == 0 then
  return 0
end
redis.call('HSET', key('job', ARGV[1]), 'tokenloom_stop', 1)
return 1
