-- Give up ownership of a session that has no work here. A hash that was never opened goes away; a closed session's keys
-- live as long as they do after closing, and no longer.
--
-- KEYS: 1 session hash, 2 my inbox, then the session's other keys. ARGV: 1 me (NAME#INCARNATION), 2 epoch, 3 seconds that
-- a closed session is kept.
-- Answer: 1 when the session is not mine now; 0 when it stays mine, since a job in my inbox may be for it and has to
-- come before whatever another worker would take from the queue.

local now = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'state')
if now[1] ~= ARGV[1] or now[2] ~= ARGV[2] then
  return 1
end
if redis.call('LLEN', KEYS[2]) > 0 then
  return 0
end
if now[3] then
  redis.call('HDEL', KEYS[1], 'owner')
  for i = 1, now[3] == 'closed' and #KEYS or 0 do
    if i ~= 2 and redis.call('TTL', KEYS[i]) > tonumber(ARGV[3]) then
      redis.call('EXPIRE', KEYS[i], ARGV[3])
    end
  end
else
  redis.call('DEL', KEYS[1])
end
return 1
