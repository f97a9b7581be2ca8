"""What is done to the workers and to Redis: kills, pauses, shutdowns, restarts, cut connections; drawn from a seed."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis as redis_py

from valkey_server import ValkeyServer
from worker_process import WorkerProcess

#: What happens, and how often in a hundred.
DEEDS = {
    "kill": 42,
    "kill all": 5,
    "stop": 15,
    "term": 12,
    "cut all": 8,
    "cut some": 8,
    "restart redis": 4,
    "kill redis": 4,
    "flush scripts": 2,
}


@dataclass
class Place:
    """One of the workers. ``again``: when it is to be started, or to go on after a stop (time.monotonic())."""

    worker: WorkerProcess
    state: str = "up"  # up, down, stopped, ending
    again: float = 0.0


class Torment:
    """Disturbs until told to ``end``; then everybody is up again."""

    def __init__(
        self,
        server: ValkeyServer,
        make_worker: Callable[[str], WorkerProcess],
        seed: int,
        *,
        workers: int,
        lease: float,
        every: float,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.diary: list[str] = []
        self._server = server
        self._make = make_worker
        self._random = random.Random(f"{seed}/torment")
        self._lease = lease
        self._every = every
        self._began = time.monotonic()
        self._names = workers
        self._places = [Place(make_worker(f"w{number}").start()) for number in range(workers)]
        self._next = time.monotonic() + every

    def tick(self) -> None:
        """Call often: does what is due."""
        now = time.monotonic()
        for place in self._places:
            self._mend(place, now)
        if now >= self._next:
            deed = self._random.choices(list(DEEDS), list(DEEDS.values()))[0]
            victim = self._random.randrange(len(self._places))
            pause = self._random.random()
            if self._do(deed, self._places[victim], pause):
                self.counts[deed] += 1
                self.diary.append(f"{now - self._began:8.2f} {deed} {self._places[victim].worker.name}")
            self._next = time.monotonic() + self._every * self._random.uniform(0.3, 1.7)

    def _mend(self, place: Place, now: float) -> None:
        ended = place.worker.process is not None and place.worker.process.poll() is not None
        if place.state == "up" and ended:
            self.counts["ended by itself"] += 1
            self.diary.append(f"{now - self._began:8.2f} {place.worker.name} ended by itself")
            self._down(place, 0.0)
        elif place.state == "ending" and ended:
            self._down(place, 0.2)
        elif place.state == "stopped" and now >= place.again:
            place.worker.send(signal.SIGCONT)
            place.state = "up"
        elif place.state == "down" and now >= place.again:
            if self._random.random() < 0.3:
                place.worker = self._make(f"w{self._names}")
                self._names += 1
            place.worker.start(born=False)
            place.state = "up"

    def _down(self, place: Place, pause: float) -> None:
        place.state, place.again = "down", time.monotonic() + pause

    def _do(self, deed: str, place: Place, pause: float) -> bool:
        """Whether there was something to do it to."""
        if deed == "kill all":
            victims = [other for other in self._places if other.state in ("up", "stopped")]
            for other in victims:
                other.worker.kill()
                self._down(other, pause)
            self.counts["kills"] += len(victims)
            return bool(victims)
        if deed == "kill":
            if place.state not in ("up", "stopped", "ending"):
                return False
            if pause * 10 % 1 > 0.5:
                self._move_away(place.worker.name)
            place.worker.kill()
            self.counts["kills"] += 1
            # now at once, now after its lease, so that both the name's next life and another worker take over
            self._down(place, 2 * self._lease * pause if pause > 0.6 else pause)
        elif deed == "stop":
            if place.state != "up":
                return False
            place.worker.send(signal.SIGSTOP)
            place.state, place.again = "stopped", time.monotonic() + self._lease * (1.2 + 1.2 * pause)
        elif deed == "term":
            if place.state != "up":
                return False
            place.worker.send(signal.SIGTERM)
            place.state = "ending"
        elif deed == "restart redis":
            self._server.stop()
            time.sleep(pause)
            self._server.start(60)
        elif deed == "kill redis":
            self._server.kill()
            # one in three outages outlasts the leases
            time.sleep(self._lease * 1.2 if pause > 0.66 else pause)
            self._server.start(60)
        else:
            return self._over_the_wire(deed)
        return True

    def _move_away(self, name: str) -> None:
        """Let a worker seem to be of another machine, so that its end shows by its lease alone."""
        try:
            with self._server.client() as client:
                client.hdel(f"tokenloom:worker:{name}", "place")
        except (redis_py.ConnectionError, redis_py.TimeoutError):
            return

    def _over_the_wire(self, deed: str) -> bool:
        with self._server.client() as client:
            if deed == "flush scripts":
                client.script_flush()
                return True
            if deed == "cut all":
                for kind in ("normal", "pubsub"):
                    client.client_kill_filter(_type=kind, skipme=True)
                return True
            connections: Any = client.client_list()
            for one in connections:
                if self._random.random() < 0.5:
                    client.client_kill_filter(_id=one["id"], skipme=True)
        return True

    def end(self) -> None:
        """Everybody goes on or is started again."""
        for place in self._places:
            if place.state == "stopped":
                place.worker.send(signal.SIGCONT)
            if place.state == "ending":
                place.worker.wait()
                place.state = "down"
            if place.state == "down" or (place.worker.process is not None and place.worker.process.poll() is not None):
                place.worker.start(born=False)
            place.state = "up"
            place.worker.wait_born()

    @property
    def workers(self) -> list[WorkerProcess]:
        """Those of now."""
        return [place.worker for place in self._places]

    def kill_rest(self) -> None:
        """For the end of a test that failed."""
        for place in self._places:
            place.worker.kill()


class StatsWatch:
    """Workers' own figures, the last seen of each life, added up."""

    FIGURES = ("resumed", "fenced", "reread", "requeued", "routed", "buried", "evicted", "tokens_generated")

    def __init__(self, url: str, namespace: str = "tokenloom") -> None:
        self._client = redis_py.Redis.from_url(url)
        self._namespace = namespace
        self._last: dict[tuple[str, str], dict[str, str]] = {}

    def look(self) -> None:
        """Read the heartbeats that are there now."""
        try:
            names: Any = self._client.smembers(f"{self._namespace}:workers")
            for name in names:
                fields: Any = self._client.hgetall(f"{self._namespace}:worker:{name.decode()}")
                plain = {key.decode(): value.decode(errors="replace") for key, value in fields.items()}
                if "incarnation" in plain:
                    self._last[name.decode(), plain["pid"] + plain["begun"]] = plain
        except (redis_py.ConnectionError, redis_py.TimeoutError, OSError):
            return

    def sums(self) -> Counter[str]:
        """Of all lives seen."""
        total: Counter[str] = Counter()
        for fields in self._last.values():
            for name, value in fields.items():
                if name in self.FIGURES or name.startswith(("refused_", "steps_")):
                    total[name] += int(float(value))
        total["lives"] = len(self._last)
        return total
