-- The fenced writes: everything a session ever gets written goes through here, all of a write or nothing of it. Each of
-- the writes stands or falls alone.
--
-- KEYS: 1 the list of sessions, 2 the jobs that this worker has by the queue's account; then of each write's session: hash,
--   log, steps hash, finished list, events stream, the steps that producers asked to end (one hash tag).
-- ARGV: 1 msgpack of what all writes have in common: owner, who writes, remember, how many finished jobs a session keeps
--   (those that the queue may deliver again are kept besides), kept, how many events, job, what the queue's keys of jobs
--   begin with; then the writes, msgpack of a map each:
--   epoch         together with the owner: anything else in the hash answers "lost"
--   state         the state the session must be in ("" for not opened)
--   length        the length the log must have, in tokens
--   job, record   the job behind the write and its new record; the same record found there answers "again":
--                 this very write was done before and its answer was lost on the way
--   events        event bodies, in order; channel: where to publish
--   and, each of them left out when there is nothing of it to do:
--   done          true: the record is final: remember it among the finished
--   begin         true: the job starts (again): it is not among the finished any more
--   set           field, value, ... for the session hash
--   reset         true: drop the old log and settings first (opening anew); what is known of jobs stays
--   writes        true: the job is now the log's last writer, and only it may take up where it left
--   cut           new length of the log in tokens, before appending
--   append        bytes for the log
--   ttl           seconds the session's keys live from now; 0 lifts it
--   used          unix time of use, for the list of sessions; false takes the session off the list; name: its id there
-- Answer: of each write {status, length, cancelled}; status is ok, again, lost, state or length.

local common = cmsgpack.unpack(ARGV[1])

-- Whether the queue would run the job again, whoever has ended it: the session may have changed hands since.
local function under_way(job)
  local status = redis.pcall('HGET', common.job .. job, 'status')
  return status == 'started' or status == 'queued'
end

local function write(w, session, log, steps, finished, events, cancels)
  local now = redis.call('HMGET', session, 'owner', 'epoch', 'state', 'length')
  local state, length = now[3] or '', tonumber(now[4] or '0') or -1
  if now[1] ~= common.owner or tonumber(now[2] or '-1') ~= w.epoch then
    return {'lost', length, 0}
  end

  local cancelled = redis.pcall('HEXISTS', cancels, w.job)
  if type(cancelled) ~= 'number' then -- producers write that key: it may be of any type
    cancelled = 0
  end
  if redis.call('HGET', steps, w.job) == w.record then
    return {'again', length, cancelled}
  end
  if state ~= w.state then
    return {'state', length, cancelled}
  end
  -- after a loss of data the hash and the string may disagree: the shorter one holds, as for whoever reads the session
  local bytes = redis.call('STRLEN', log)
  length = math.min(length, math.floor(bytes / 4))
  if length ~= w.length then
    return {'length', length, cancelled}
  end
  if bytes > length * 4 then
    redis.call('SET', log, redis.call('GETRANGE', log, 0, length * 4 - 1), 'KEEPTTL')
  end

  if w.reset then
    redis.call('DEL', log)
    for _, name in ipairs(redis.call('HKEYS', session)) do
      if name ~= 'owner' and name ~= 'epoch' then
        redis.call('HDEL', session, name)
      end
    end
    length = 0
  end
  if w.cut and w.cut < length then
    if w.cut == 0 then
      redis.call('DEL', log)
    else
      redis.call('SET', log, redis.call('GETRANGE', log, 0, w.cut * 4 - 1))
    end
    length = w.cut
  end
  if w.append then
    redis.call('APPEND', log, w.append)
    length = length + #w.append / 4
  end
  local set = w.set or {}
  if w.writes then
    set[#set + 1], set[#set + 2] = 'writer', w.job
  end
  redis.call('HSET', session, 'length', length, unpack(set))
  redis.call('HSET', steps, w.job, w.record)
  if w.done then
    if cancelled == 1 then
      redis.call('HDEL', cancels, w.job)
    end
    redis.call('LREM', finished, 0, w.job)
    local many = redis.call('RPUSH', finished, w.job)
    while many > common.remember do
      local oldest = redis.call('LINDEX', finished, 0)
      if redis.call('ZSCORE', KEYS[2], oldest) or under_way(oldest) then
        break -- the queue does not know yet that it ended: should its worker die now, it comes again
      end
      redis.call('HDEL', steps, oldest)
      redis.call('LPOP', finished)
      many = many - 1
    end
  elseif w.begin then
    redis.call('LREM', finished, 0, w.job)
  end

  for _, event in ipairs(w.events) do
    local id = redis.call('XADD', events, 'MAXLEN', '~', common.kept, '*', 'e', event)
    redis.call('PUBLISH', w.channel, '\146' .. cmsgpack.pack(id) .. event)
  end
  if w.ttl then
    for _, key in ipairs({session, log, steps, finished, events}) do
      if w.ttl > 0 then redis.call('EXPIRE', key, w.ttl) else redis.call('PERSIST', key) end
    end
    if w.ttl > 0 then redis.call('EXPIRE', cancels, w.ttl) end -- and else keeps the time it has
  end
  if w.used then
    redis.call('ZADD', KEYS[1], w.used, w.name)
  elseif w.used == false then
    redis.call('ZREM', KEYS[1], w.name)
  end
  return {'ok', length, cancelled}
end

local answers = {}
for i = 2, #ARGV do
  answers[i - 1] = write(cmsgpack.unpack(ARGV[i]), unpack(KEYS, 6 * i - 9, 6 * i - 4))
end
return answers
