"""The functions the jobs name. Only BatchWorker serves them; any other RQ worker gets an error saying how to run it."""

from __future__ import annotations

from typing import Any, NoReturn

HOW_TO_RUN = "rq worker -w tokenloom.worker.BatchWorker -S tokenloom.schemas.MsgpackSerializer steps"


def _wrong_worker(**_: Any) -> NoReturn:
    raise RuntimeError(f"this job is served by tokenloom's worker only; start it with: {HOW_TO_RUN}")


open = step = clone = rewind = close = _wrong_worker
