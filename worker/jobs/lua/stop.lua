-- Writes down that a job is to be stopped, for the worker that has it or takes it next; the job's end clears that.
--
-- ARGV: 1 job id, 2 name of the worker that was told to stop it, 3 id of the execution that was; "" for none.
-- Answer: 1; 0 when neither has to do with the job's present run, and nothing was written.

local id, name, execution = ARGV[1], ARGV[2], ARGV[3]
local job = key('job', id)
if redis.call('TYPE', job).ok ~= 'hash' then
  return 0
end
local meant = (execution ~= '' and redis.call('EXISTS', key('execution', id, execution)) == 1)
  or (name ~= '' and type(redis.pcall('ZSCORE', key('jobs', name), id)) == 'string')
for _, former in ipairs(past_of(job)) do
  meant = meant or former == 'w:' .. name or former == 'e:' .. execution
end
if not meant then
  return 0
end
redis.call('HSET', job, 'tokenloom_stop', 1)
return 1
