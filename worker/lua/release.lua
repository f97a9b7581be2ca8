-- Give up ownership of a session that has no work here. A hash that was never opened goes away.
--
-- KEYS: 1 session hash. ARGV: 1 me (NAME#INCARNATION), 2 epoch.
-- Answer: 1, or 0 when it was not mine any more.

local now = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'state')
if now[1] ~= ARGV[1] or now[2] ~= ARGV[2] then
  return 0
end
if now[3] then
  redis.call('HDEL', KEYS[1], 'owner')
else
  redis.call('DEL', KEYS[1])
end
return 1
