-- Takes up to `most` jobs, in order: the inbox first, then the queues. One atomic step from "queued" to "executing", so
-- that a worker killed at any moment loses nothing.
--
-- ARGV: 1 me, 2 my incarnation, 3 most, 4 now (RQ's time format), 5 now (unix seconds), 6 seconds until RQ may call an
--   execution abandoned, 7 "1" to take one job of each queue in turn, 8 most bytes of job data to return, 9 how many
--   queue keys follow, 10 what the execution ids begin with, 28 hex digits; then the queue keys in order.
-- Answer: {standing, claimed, unknown, skipped, routed, requeued, more}
--   standing  1; or nothing was done, since 0 I was taken for dead, 2 RQ is suspended, 3 my lease has lapsed, but nobody
--             has buried me, so that the next heartbeat may renew it
--   claimed   {id, execution id, hash as a flat list, {session, epoch, ...}} each; epoch -1: not to be had, mostly because
--             another live worker has it
--   unknown   {id, hash as a flat list} of jobs that stay at the head of their queue because nobody knows their
--             sessions: read them, say so with annotate.lua, and claim again
--   skipped   ids that were dropped: no job, not queued (a duplicate, canceled, ended), or no id RQ would accept
--   routed    how many went to the inbox of their session's owner
--   requeued  how many jobs of dead workers were put back on the way
--   more      1 when the script stopped before the queues were empty

local me, incarnation, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local written, now, ttl = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local in_turn, max_data, queues = ARGV[7] == '1', tonumber(ARGV[8]), tonumber(ARGV[9])
local mine = me .. '#' .. incarnation
local steps = 4 * most + 64      -- ids looked at, at most: bounds the time of one call

local lease_left = redis.call('PTTL', key('worker', me))

local claimed, unknown, skipped, routed, requeued = {}, {}, {}, 0, 0
local buried = {}

local current = redis.call('HGET', key('worker', me), 'incarnation')
if current ~= incarnation then
  local lapsed = not current and redis.call('HGET', key('rq_worker', me), 'tokenloom') == incarnation
  return {lapsed and 3 or 0, claimed, unknown, skipped, 0, 0, 0}
end
if redis.call('EXISTS', names.suspended) == 1 then
  return {2, claimed, unknown, skipped, 0, 0, 0}
end

-- 'mine', 'free', 'live', 'dead', or 'broken' when its key holds no hash; and the owner.
local function standing(session)
  local owner = owner_of(session)
  if owner == nil then
    return 'broken'
  end
  local name = owner and owner_name(owner)
  if not name then
    return 'free'
  end
  if owner == mine then
    return 'mine'
  end
  local current = redis.call('HGET', key('worker', name), 'incarnation')
  if current and owner == name .. '#' .. current then
    return 'live', owner, name
  end
  -- A worker that lives again under that name has put its old jobs back itself.
  if current or name == me or buried[name] then
    return 'free'
  end
  return 'dead', owner, name
end

-- A session that is closed or not opened expires, but not while it has a job: all of its keys get some time.
local function keep(session)
  local left = redis.call('TTL', key('session', session))
  if left >= 0 and left < EXPIRES_UNOPENED then
    for _, kind in ipairs({'session', 'log', 'steps', 'finished', 'events'}) do
      redis.call('EXPIRE', key(kind, session), EXPIRES_UNOPENED)
    end
  end
end

local function give(session, owner)
  local hash = key('session', session)
  local unopened = redis.call('EXISTS', hash) == 0
  local epoch = redis.pcall('HINCRBY', hash, 'epoch', 1)
  if type(epoch) == 'table' then
    return -1 -- somebody has written nonsense there
  end
  redis.call('HSET', hash, 'owner', owner)
  if unopened then
    redis.call('EXPIRE', hash, EXPIRES_UNOPENED)
  end
  return epoch
end

-- What is too large is left out, and `tokenloom_large` says what that was, for whoever reads the job to refuse it.
local function hash_of(job)
  local held = redis.call('HLEN', job)
  if held > MAX_FIELDS then
    local origin = redis.call('HGET', job, 'origin') or ''
    return {'origin', origin, 'status', 'started', 'tokenloom_large', held .. ' fields'}
  end
  local fields = redis.call('HGETALL', job)
  for i = 1, #fields, 2 do
    if #fields[i + 1] > (fields[i] == 'data' and max_data or MAX_META) then
      if fields[i] ~= 'data' and fields[i] ~= 'exc_info' and fields[i] ~= 'result' then
        fields[#fields + 1] = 'tokenloom_large'
        fields[#fields + 1] = string.sub(fields[i], 1, 64)
      end
      fields[i + 1] = ''
    end
  end
  return fields
end

local function start(id, job, origin, sessions)
  local epochs = {}
  for i, session in ipairs(sessions) do
    local state = standing(session)
    local epoch
    if state ~= 'live' and state ~= 'broken' then
      keep(session)
    end
    if state == 'mine' then
      epoch = tonumber(redis.call('HGET', key('session', session), 'epoch')) or -1
    elseif state == 'live' or state == 'broken' then
      epoch = -1
    else
      epoch = give(session, mine)
    end
    epochs[2 * i - 1], epochs[2 * i] = session, epoch
  end

  local execution = ARGV[10] .. string.format('%04x', #claimed)
  local both = id .. ':' .. execution
  local record = key('execution', id, execution)
  redis.call('HSET', job, 'status', 'started', 'worker_name', me, 'started_at', written, 'last_heartbeat', written, 'origin', origin)
  redis.call('PERSIST', job)
  lapse_name(job, lease_left)
  redis.call('HSET', record, 'id', execution, 'job_id', id, 'created_at', ARGV[5], 'last_heartbeat', ARGV[5], 'worker_name', me, 'origin', origin)
  redis.call('EXPIRE', record, ttl)
  redis.call('ZADD', key('executions', id), now + ttl + 60, execution)
  redis.call('EXPIRE', key('executions', id), ttl + 60)
  redis.call('ZADD', key('wip', origin), now + ttl, both)
  redis.call('SADD', key('rq_executions', me), both)
  redis.call('EXPIRE', key('rq_executions', me), ttl + 60)
  local last = redis.call('ZREVRANGE', key('jobs', me), 0, 0, 'WITHSCORES')[2]
  redis.call('ZADD', key('jobs', me), (tonumber(last) or 0) + 1, id)
  claimed[#claimed + 1] = {id, execution, hash_of(job), epochs}
end

-- Routes a job to the owner of its first session; sessions that nobody owns go to that worker too.
local function route(id, origin, sessions, owner, name)
  redis.call('HSET', key('job', id), 'origin', origin)
  redis.call('RPUSH', key('inbox', name), id)
  for i = 2, #sessions do
    local state = standing(sessions[i])
    if state == 'free' or state == 'dead' then
      give(sessions[i], owner)
    end
  end
  routed = routed + 1
end

local function look_ahead(list)
  for _, id in ipairs(redis.call('LRANGE', list, 0, most - 1)) do
    local job = string.find(id, '^[%w_%-]+$') and key('job', id)
    if job and redis.call('HGET', job, 'status') == 'queued' and not sessions_of(job) then
      unknown[#unknown + 1] = {id, hash_of(job)}
    end
  end
end

-- Deals with the id at the head of a list. False when nothing more can be had from it now.
local function advance(list, queue_name)
  local id = redis.call('LINDEX', list, 0)
  if not id then
    return false
  end
  steps = steps - 1
  if #id > 512 or not string.find(id, '^[%w_%-]+$') then
    redis.call('LPOP', list)
    skipped[#skipped + 1] = string.sub(id, 1, 200)
    return true
  end
  local job = key('job', id)
  local fields = redis.pcall('HMGET', job, 'status', 'origin')
  if fields.err or fields[1] ~= 'queued' then
    redis.call('LPOP', list)
    skipped[#skipped + 1] = id
    return true
  end
  local sessions = sessions_of(job)
  if not sessions then
    look_ahead(list)
    return false
  end
  -- where it was found, whatever it says itself: a registry or a queue is never named by a producer
  local origin = queue_name ~= '' and queue_name or fields[2] or ''
  local state, owner, name
  if sessions[1] then
    state, owner, name = standing(sessions[1])
  end
  redis.call('LPOP', list)
  if state == 'dead' then
    -- what that worker had of this session is older, and so comes first
    redis.call('LPUSH', key('queue', origin), id)
    requeued = requeued + bury(name, true)
    bury_in_rq(name)
    buried[name] = true
  elseif state == 'live' then
    route(id, origin, sessions, owner, name)
  else
    start(id, job, origin, sessions)
  end
  return true
end

local function wanted()
  return #claimed < most and steps > 0
end

local lists, from = {key('inbox', me)}, {''}
for i = 1, queues do
  lists[i + 1] = ARGV[10 + i]
  from[i + 1] = string.sub(ARGV[10 + i], #names.queue - 1)
end
while wanted() and advance(lists[1], from[1]) do end
if in_turn then
  local any = true
  while any do
    any = false
    for i = 2, #lists do
      if wanted() and advance(lists[i], from[i]) then
        any = true
      end
    end
  end
else
  for i = 2, #lists do
    while wanted() and advance(lists[i], from[i]) do end
  end
end

return {1, claimed, unknown, skipped, routed, requeued, wanted() and 0 or 1}
