-- Take ownership of a session outside the queue, to rebuild its cells at start.
--
-- KEYS: 1 session hash, 2 worker hash of its present owner (any key when it has none).
-- ARGV: 1 me (NAME#INCARNATION), 2 the owner the caller saw ("" for none), 3 that owner's incarnation.
-- Answer: the epoch under which it is now mine, or -1: not open, owned by a live worker, or changed meanwhile.

local now = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'state')
if now[3] ~= 'open' or (now[1] or '') ~= ARGV[2] then
  return -1
end
if now[1] == ARGV[1] then
  return tonumber(now[2])
end
if now[1] and redis.call('HGET', KEYS[2], 'incarnation') == ARGV[3] then
  return -1
end
local epoch = tonumber(now[2] or '0') + 1
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'epoch', epoch)
return epoch
