-- Begins a worker's life under a name: buries whoever had the name, then takes the lease.
--
-- ARGV: 1 me, 2 my incarnation, 3 the incarnation that the caller knows to be dead ("" for none), 4 lease in
--   milliseconds, 0 to bury only, 5 "1" when my own former incarnation only lost its lease and so did not die of its jobs,
--   then field, value, ... of my hash.
-- Answer: how many jobs of the predecessor went back to their queues, or -1 when another incarnation lives.

local me, incarnation = ARGV[1], ARGV[2]
local current = redis.call('HGET', key('worker', me), 'incarnation')
local back = 0
if current ~= incarnation then
  if current and current ~= ARGV[3] then
    return -1
  end
  back = bury(me, ARGV[5] ~= '1')
  bury_in_rq(me)
end
if ARGV[4] == '0' then
  return back
end
redis.call('HSET', key('worker', me), 'incarnation', incarnation)
for i = 6, #ARGV, 2 do
  redis.call('HSET', key('worker', me), ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIRE', key('worker', me), ARGV[4])
redis.call('SADD', names.workers, me)
return back
