-- Shared by every script of this folder; scripts.py puts it in front of each, after `names`, a table of key templates.
--
-- The contract of ownership:
--  * A worker lives while its hash (names.worker) is there and holds its incarnation; the hash expires with its lease.
--  * A session's hash names its owner as NAME#INCARNATION, and counts changes of owner in `epoch`, which fences commits.
--    An owner that does not live owns nothing.
--  * Everything a worker has taken is in its jobs (sorted set, by order of claim), everything routed to it in its inbox
--    (list). The jobs of one session are nowhere else but in queues, and every script keeps their order.
--  * Whoever finds a worker dead puts its jobs and its inbox back at the front of their queues before anything newer.

local EXPIRES_UNOPENED = 600     -- seconds that a session hash made by a claim lives unless the session is opened
local SEQUENCES_KEPT = 86400     -- seconds that a dead worker's session table is kept
local MAX_META = 262144          -- bytes of meta, or of any field of a job but its data; more is not looked at
local MAX_FIELDS = 256           -- of a job's hash; RQ writes about 40
local MAX_SESSIONS = 1025        -- a job's own, and the targets of the widest clone
local MAX_PAST = 32              -- names and ids of those who had a job before, in this run of it

local function key(kind, a, b)
  return string.format(names[kind], a, b)
end

local function valid_session(id)
  return type(id) == 'string' and #id <= 128 and string.find(id, '^[A-Za-z0-9][A-Za-z0-9._:@~%-]*$') ~= nil
end

local function listed_sessions(meta)
  if not meta or #meta > MAX_META then
    return nil
  end
  local ok, value = pcall(cmsgpack.unpack, meta)
  local listed = ok and type(value) == 'table' and value.sessions
  if type(listed) ~= 'table' or #listed == 0 or #listed > MAX_SESSIONS then
    return nil
  end
  local sessions = {}
  for i = 1, #listed do
    if not valid_session(listed[i]) then
      return nil
    end
    sessions[i] = listed[i]
  end
  return sessions
end

-- The sessions a job needs, the one it is queued under first; nil when nobody has said so yet. What a worker has read
-- from the job itself (annotate.lua) counts for more than what the producer wrote into its meta.
local function sessions_of(job)
  local fields = redis.call('HMGET', job, 'tokenloom_sessions', 'meta')
  if fields[1] then
    local sessions = {}
    for id in string.gmatch(fields[1], '%S+') do
      sessions[#sessions + 1] = id
    end
    return sessions
  end
  return listed_sessions(fields[2])
end

local function owner_name(owner)
  return string.match(owner, '^(.*)#[^#]*$')
end

-- RQ's stop-job goes to the worker that a job names. Where the server can let a field lapse (Valkey 9, Redis 7.4) that
-- name goes with the worker's lease: RQ then says that the job is not executing, instead of telling a dead worker.
local function lapse_name(job, milliseconds)
  if milliseconds > 0 then
    redis.pcall('HPEXPIRE', job, milliseconds, 'FIELDS', 1, 'worker_name')
  end
end

-- Who had a job before, in this run of it: `w:` and a worker's name, `e:` and an execution's id, the last ones last.
-- Somebody may have looked the job up just before it was put back, and tell them to stop it.
local function past_of(job)
  local raw = redis.call('HGET', job, 'tokenloom_past')
  local ok, listed = pcall(cmsgpack.unpack, raw and #raw <= MAX_META and raw or '')
  local past = {}
  if ok and type(listed) == 'table' then
    for i = math.max(1, #listed - MAX_PAST + 1), #listed do
      if type(listed[i]) == 'string' then
        past[#past + 1] = listed[i]
      end
    end
  end
  return past
end

local function remember_past(job, name, executions)
  local past = past_of(job)
  past[#past + 1] = 'w:' .. name
  for _, execution in ipairs(executions) do
    past[#past + 1] = 'e:' .. execution
  end
  redis.call('HSET', job, 'tokenloom_past', cmsgpack.pack(past))
end

-- Removes every record of a job being executed by a worker, and returns the executions' ids. The job itself may be gone,
-- so the execution says its queue.
local function end_executions(id, name)
  local executions = key('executions', id)
  local ended = redis.call('ZRANGE', executions, 0, -1)
  for _, execution in ipairs(ended) do
    local record = key('execution', id, execution)
    redis.call('ZREM', key('wip', redis.call('HGET', record, 'origin') or ''), id .. ':' .. execution)
    redis.call('DEL', record)
    redis.call('SREM', key('rq_executions', name), id .. ':' .. execution)
  end
  redis.call('DEL', executions)
  return ended
end

-- A session's owner, false for none, nil when its key is something else than a hash.
local function owner_of(session)
  local owner = redis.pcall('HGET', key('session', session), 'owner')
  if type(owner) == 'table' then
    return nil
  end
  return owner
end

local function disown(job, name)
  for _, session in ipairs(sessions_of(job) or {}) do
    local owner = owner_of(session)
    if owner and owner_name(owner) == name then
      redis.call('HDEL', key('session', session), 'owner')
    end
  end
end

-- Puts the given claimed jobs of a worker, then the given ids of its inbox, back at the front of their queues in that
-- order; of a worker that lives on, at the front of its inbox, where newer jobs of its sessions may be already and which
-- it reads before any queue. RQ's retries are not touched. A job that is gone, or ended meanwhile, is dropped.
-- `killer`: the job that was at work alone when the worker died, or '*' for all claimed ones, or false for none. Deaths
-- are counted either way; `tokenloom_alone` is the count as of the last one that was this job's alone.
-- `alive`: the worker lives on and keeps its sessions. Returns how many went back.
local function put_back(name, claimed, inbox, killer, alive)
  local back = {}
  for _, id in ipairs(claimed) do
    local job = key('job', id)
    local now = redis.call('HMGET', job, 'status', 'worker_name', 'origin')
    local origin = now[3] or ''
    redis.call('ZREM', key('jobs', name), id)
    local executions = end_executions(id, name)
    if now[1] == 'started' and (now[2] == name or not now[2]) then
      redis.call('HSET', job, 'status', 'queued', 'worker_name', '', 'started_at', '')
      remember_past(job, name, executions)
      if killer == '*' or killer == id then
        local deaths = redis.call('HINCRBY', job, 'tokenloom_deaths', 1)
        if killer == id then
          redis.call('HSET', job, 'tokenloom_alone', deaths)
        end
      end
      back[#back + 1] = {id, origin}
    elseif now[1] and now[1] ~= 'started' and now[1] ~= 'queued' then
      redis.call('HDEL', job, 'tokenloom_stop', 'tokenloom_past') -- its run is over
    end
    if not alive then
      disown(job, name)
    end
  end
  for _, id in ipairs(inbox) do
    local job = key('job', id)
    local now = redis.call('HMGET', job, 'status', 'origin')
    if now[1] == 'queued' then
      back[#back + 1] = {id, now[2] or ''}
    end
    disown(job, name)
  end
  for i = #back, 1, -1 do
    redis.call('LPUSH', alive and key('inbox', name) or key('queue', back[i][2]), back[i][1])
  end
  return #back
end

-- Takes all there is of a worker out of Redis, its jobs back into their queues. `blame`: whether it died of its jobs.
-- The persisted session table stays for a while, for the next worker of that name.
local function bury(name, blame)
  local killer = blame and (redis.call('HGET', key('worker', name), 'suspect') or redis.call('GET', key('suspect', name)) or '*')
  local back = put_back(
    name,
    redis.call('ZRANGE', key('jobs', name), 0, -1),
    redis.call('LRANGE', key('inbox', name), 0, -1),
    killer,
    false
  )
  redis.call('DEL', key('worker', name), key('jobs', name), key('inbox', name), key('suspect', name))
  redis.call('EXPIRE', key('sequences', name), SEQUENCES_KEPT)
  redis.call('SREM', names.workers, name)
  return back
end

-- Takes a dead worker out of RQ's own lists as well.
local function bury_in_rq(name)
  local hash = key('rq_worker', name)
  for queue in string.gmatch(redis.call('HGET', hash, 'queues') or '', '[^,]+') do
    redis.call('SREM', key('rq_workers_of', queue), hash)
  end
  redis.call('SREM', names.rq_workers, hash)
  redis.call('DEL', hash, key('rq_executions', name))
end
