"""A subscriber of every session's stream, and what RQ and the logs say at the end. Uses redis-py and msgpack alone."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgpack
import redis as redis_py

from chaos.history import History, Job

#: Seconds between reads. Far below the time that a closed session's stream is kept.
EVERY = 0.1
#: Seconds after its last job was enqueued and its last event read that a stream is no longer looked at.
QUIET = 90.0


def retrying(client: redis_py.Redis, what: Any, patience: float = 60.0) -> Any:
    """``what(client)``, again while Redis is away."""
    until = time.monotonic() + patience
    while True:
        try:
            return what(client)
        except (redis_py.ConnectionError, redis_py.TimeoutError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file, which may not be there yet; a last one that is still being written is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


class Recorder:
    """Follows every session that the producers' diaries in ``folder`` name, until ``finish``."""

    def __init__(self, url: str, folder: Path, producers: int, namespace: str = "tokenloom") -> None:
        self.history = History()
        self._client = redis_py.Redis.from_url(url)
        self._folder = folder
        self._producers = producers
        self._namespace = namespace
        self._offsets = [0] * producers
        self._last: dict[str, str] = {}
        self._moved: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._trouble: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def key(self, session: str, kind: str) -> str:
        """A session's key."""
        return f"{self._namespace}:{{{session}}}:{kind}"

    def follow(self, session: str) -> None:
        """Read a session's stream, too, from its beginning."""
        self._last.setdefault(session, "0-0")
        self._moved[session] = time.monotonic()
        self.history.events.setdefault(session, [])

    def _run(self) -> None:
        try:
            while not self._stop.wait(EVERY):
                self._learn()
                retrying(self._client, lambda _: self._read())
        except BaseException as error:
            self._trouble = error

    def _learn(self) -> None:
        """Jobs written down since the last look, and their sessions."""
        for number in range(self._producers):
            path = self._folder / f"jobs-{number}.jsonl"
            if not path.exists():
                continue
            with path.open() as file:
                file.seek(self._offsets[number])
                text = file.read()
            whole = text[: text.rfind("\n") + 1]
            self._offsets[number] += len(whole.encode())
            for line in whole.splitlines():
                job: Job = json.loads(line)
                self.history.jobs.append(job)
                for session in [job["session"], *job.get("targets", ())]:
                    self.follow(session)

    def _read(self) -> None:
        now = time.monotonic()
        streams: Any = {
            self.key(session, "events"): last
            for session, last in self._last.items()
            if now - self._moved[session] < QUIET
        }
        while streams:
            answer: Any = self._client.xread(streams, count=2000)
            found = answer.items() if isinstance(answer, dict) else answer
            found = [(key, entries[0] if isinstance(answer, dict) else entries) for key, entries in found]
            for key, entries in found:
                session = key.decode().partition("{")[2].partition("}")[0]
                for id, fields in entries:
                    event = msgpack.unpackb(fields[b"e"])
                    del event["v"], event["at"]
                    for name in ("type", "session", "job"):
                        event[name] = sys.intern(event[name])  # there may be a million of them
                    self.history.events[session].append((id.decode(), event))
                    self._last[session] = streams[key.decode()] = id.decode()
                self._moved[session] = now
            if not found:
                return

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self, *, started: bool = True) -> History:
        """Read what is left, and everything that is to be read once: producers have ended, nothing is on its way."""
        self._stop.set()
        if started:
            self._thread.join()
        if self._trouble is not None:
            raise self._trouble
        self._learn()
        self._moved = dict.fromkeys(self._moved, time.monotonic())
        retrying(self._client, lambda _: self._read())
        history = self.history
        for number in range(self._producers):
            self._hear(read_lines(self._folder / f"answers-{number}.jsonl"))
        for session in history.events:
            entries: Any = self._client.xrange(self.key(session, "events"))
            if entries:
                history.kept[session] = [id.decode() for id, _ in entries]
            if self._client.hget(self.key(session, "session"), "state") == b"open":
                data: Any = self._client.get(self.key(session, "log")) or b""
                history.logs[session] = [int.from_bytes(data[at : at + 3], "little") for at in range(0, len(data), 4)]
        history.endings = self._endings(job["id"] for job in history.jobs)
        return history

    def _hear(self, answers: Iterable[dict[str, Any]]) -> None:
        for answer in answers:
            id = answer.pop("id")
            if "cancel" in answer:
                self.history.cancels.add(id)
            elif "late" in answer:
                self.history.late.add(id)
            elif "seen" in answer:
                self.history.seen[id] = answer["seen"]
            else:
                self.history.answers.setdefault(id, []).append(answer)

    def _endings(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        ids = list(ids)
        with self._client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hget(f"rq:job:{id}", "status")
                pipe.xlen(f"rq:results:{id}")
            answers = pipe.execute()
        return {
            id: {"status": status.decode(), "results": results}
            for id, status, results in zip(ids, answers[::2], answers[1::2], strict=True)
            if status is not None
        }
