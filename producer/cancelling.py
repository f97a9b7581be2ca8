"""Asking a step to end."""

from __future__ import annotations

import time

from rq.job import Job

from tokenloom.schemas.keys import Keys

from .talk import Ask, Talk, patient

#: Seconds a mark waits for its step's turn. The worker removes it when the step is over.
MARK_TTL = 7 * 24 * 3600

_MARK = """
local over = {finished = true, failed = true, stopped = true, canceled = true}
local status = redis.call('HGET', ARGV[5], 'status')
if status and over[status] then return 0 end
local record = redis.call('HGET', ARGV[4], ARGV[1])
if record then
  local reason = cmsgpack.unpack(record).reason
  if reason and (reason ~= 'error' or not status) then return 0 end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""


def request_cancel(keys: Keys, session: str, step: str, *, where: str, patience: float) -> Talk[bool]:
    """Marks the step among its session's cancels; False when the step is over already, which then stays as it is.

    The worker that has it ends it as ``cancelled`` at its next commit; one that is still in the queue ends as soon as
    it is claimed.
    """
    # The steps hash is no declared key: a user of Redis that may only read it could not run the script. Whether a
    # failed job will be tried again, RQ alone knows.
    marked_at = f"{time.time():.3f}"
    mark = ("EVAL", _MARK, 1, keys.cancels(session), step, marked_at, MARK_TTL, keys.steps(session), Job.key_for(step))
    (marked,) = yield from patient(Ask((mark,)), where=where, patience=patience)
    return bool(marked)
