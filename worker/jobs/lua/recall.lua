-- Puts jobs that I have claimed by Redis's account but know nothing of at the front of my inbox: the answer of a claim was
-- lost on the way. Not into the queue: what others have routed to me meanwhile is newer, and I read the inbox first.
--
-- ARGV: 1 me, 2 my incarnation, then the ids of the jobs I know.
-- Answer: how many went back.

local me = ARGV[1]
if redis.call('HGET', key('worker', me), 'incarnation') ~= ARGV[2] then
  return 0
end
local known = {}
for i = 3, #ARGV do
  known[ARGV[i]] = true
end
local unknown = {}
for _, id in ipairs(redis.call('ZRANGE', key('jobs', me), 0, -1)) do
  if not known[id] then
    unknown[#unknown + 1] = id
  end
end
return put_back(me, unknown, {}, false, true)
