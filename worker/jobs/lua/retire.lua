-- Ends my own life: everything I have goes back to the front of its queue, and my lease ends, in one step, so that no
-- other worker can route anything to me in between.
--
-- ARGV: 1 me, 2 my incarnation, 3 "1" when I end because of what my jobs did to me.
-- Answer: how many jobs went back, or -1 when I was taken for dead before.

local me = ARGV[1]
local current = redis.call('HGET', key('worker', me), 'incarnation')
local known = redis.call('HGET', key('rq_worker', me), 'tokenloom')
if current ~= ARGV[2] and (current or known ~= ARGV[2]) then
  return -1
end
redis.call('HDEL', key('rq_worker', me), 'tokenloom') -- what a late heartbeat would take for a lapse
return bury(me, ARGV[3] == '1')
