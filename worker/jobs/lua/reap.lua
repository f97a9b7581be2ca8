-- Buries every worker whose lease has lapsed: its jobs go back to the front of their queues, nothing of RQ's retries spent.
--
-- ARGV: 1 me (never buried here).
-- Answer: {name, jobs put back, ...} of the workers buried.

local answer = {}
for _, name in ipairs(redis.call('SMEMBERS', names.workers)) do
  if name ~= ARGV[1] and redis.call('EXISTS', key('worker', name)) == 0 then
    answer[#answer + 1] = name
    answer[#answer + 1] = bury(name, true)
    bury_in_rq(name)
  end
end
return answer
