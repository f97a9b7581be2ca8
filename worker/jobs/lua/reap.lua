-- Buries every worker whose lease has lapsed or that is known to have ended: its jobs go back to the front of their
-- queues, nothing of RQ's retries spent.
--
-- ARGV: 1 me (never buried here), then name, incarnation, ... of workers that have ended, whatever their leases say.
-- Answer: {name, jobs put back, ...} of the workers buried.

local answer, ended = {}, {}
for i = 2, #ARGV, 2 do
  ended[ARGV[i]] = ARGV[i + 1]
end
for _, name in ipairs(redis.call('SMEMBERS', names.workers)) do
  local current = redis.call('HGET', key('worker', name), 'incarnation')
  if name ~= ARGV[1] and (not current or current == ended[name]) then
    answer[#answer + 1] = name
    answer[#answer + 1] = bury(name, true)
    bury_in_rq(name)
  end
end
return answer
