-- Writes down which sessions a queued job needs, as read from the job itself.
--
-- ARGV: pairs of job id and the sessions' ids joined by spaces ("" when the job does not say).
-- Answer: how many were written; a job that is gone is left alone.

local written = 0
for i = 1, #ARGV, 2 do
  local job = key('job', ARGV[i])
  if redis.call('EXISTS', job) == 1 then
    redis.call('HSET', job, 'tokenloom_sessions', ARGV[i + 1])
    written = written + 1
  end
end
return written
