"""Whether Redis is set up to keep sessions: what of it may lose them is said in the log, with what mends it."""

# mypy: disable-error-code="no-untyped-call"
# redis-py leaves some of what is called here without annotations.
from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from redis import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.sentinel import SentinelConnectionPool

from .retrying import transient
from .trouble import speaks_tls

log = logging.getLogger("rq.worker")

#: Seconds between looks at a server: memory fills, and a failover may bring another configuration.
LOOK_EVERY = 30.0

#: Shares of maxmemory from which on it is nearly reached, and below which it no longer is.
NEARLY, NO_LONGER = 0.9, 0.85

Name = Literal["eviction", "no_aof", "fsync", "memory"]


@dataclass(frozen=True, slots=True)
class Risk:
    """``name`` is for the worker's figures, ``text`` for its log. ``command`` mends it, behind the client's name."""

    name: Name
    text: str
    command: str


class Durability:
    """What a server says of how it keeps data, looked at now and then. One thread at a time."""

    def __init__(self, link: Redis) -> None:
        self.risks: tuple[Risk, ...] = ()
        #: What the server does not tell us, by the names of its settings.
        self.unchecked: tuple[str, ...] = ()
        #: The share of maxmemory in use, 0 without a limit.
        self.memory = 0.0
        self._link = link
        self._due = 0.0
        self._client = ""

    def figures(self) -> dict[str, int | float | str]:
        """For the worker's hash: names of risks, what could not be checked, the share of memory used. Never raises."""
        if time.monotonic() >= self._due:
            self.look()
        names = " ".join(risk.name for risk in self.risks)
        return {"redis_risks": names, "redis_unchecked": " ".join(self.unchecked), "redis_memory": self.memory}

    def look(self) -> None:
        """Ask the server, and log what is new since the last look. Trouble with it is for others to notice."""
        self._due = time.monotonic() + LOOK_EVERY
        try:
            info = self._info()
            fsync = self._fsync() if number(info, "aof_enabled") else None
        except RedisError as error:
            if not transient(error):
                log.warning("tokenloom: could not ask Redis how it keeps sessions: %s", error)
            return
        limit, used = number(info, "maxmemory") or 0, number(info, "used_memory") or 0
        used -= number(info, "mem_not_counted_for_evict") or 0
        self.memory = round(used / limit, 3) if limit else 0.0
        nearly = self.memory >= (NO_LONGER if any(risk.name == "memory" for risk in self.risks) else NEARLY)
        found = tuple(risks_of(info, fsync, nearly=nearly))
        self._say(found, tuple(unchecked_of(info, fsync)))

    def _say(self, found: tuple[Risk, ...], unchecked: tuple[str, ...]) -> None:
        known = {risk.name for risk in self.risks}
        for risk in found:
            if risk.name not in known:
                log.warning("tokenloom: %s: `%s %s`", risk.text, self._client, risk.command)
        for name in sorted(known - {risk.name for risk in found}):
            log.info("tokenloom: what was said of Redis (%s) has been mended", name)
        if unchecked and unchecked != self.unchecked:
            log.info("tokenloom: this user of Redis may not see, so that it was not checked: %s", ", ".join(unchecked))
        self.risks, self.unchecked = found, unchecked

    def _info(self) -> dict[str, Any]:
        """INFO, as far as it is allowed."""
        sections = ("memory", "persistence", "stats", *(() if self._client else ("server",)))
        with self._link.pipeline(transaction=False) as pipe:
            for section in sections:
                pipe.info(section)
            answers = pipe.execute(raise_on_error=False)
        info: dict[str, Any] = {}
        for answer in answers:
            if isinstance(answer, dict):
                info |= answer
            elif not isinstance(answer, NoPermissionError):
                raise answer
        self._client = self._client or client_command(self._link, valkey="valkey_version" in info)
        return info

    def _fsync(self) -> str | None:
        """``appendfsync``. INFO does not tell, and CONFIG is an administrator's: no other user is made to ask for it,
        since what is refused stands in the server's log of such attempts.
        """
        if self._link.connection_pool.connection_kwargs.get("username") not in (None, "", "default"):
            return None
        try:
            answer: dict[Any, Any] = self._link.config_get("appendfsync")
        except ResponseError as error:
            if transient(error):
                raise
            return None
        value = answer.get("appendfsync", answer.get(b"appendfsync"))
        return value.decode() if isinstance(value, bytes) else value


def risks_of(info: Mapping[str, Any], fsync: str | None, *, nearly: bool) -> Iterator[Risk]:
    """What may lose sessions, by the server's account. ``nearly``: little is left of maxmemory."""
    policy, limit = info.get("maxmemory_policy", "noeviction"), number(info, "maxmemory") or 0
    if policy != "noeviction":
        yield Risk(
            "eviction",
            eviction(policy, limit, number(info, "evicted_keys") or 0),
            _set("maxmemory-policy", "noeviction"),
        )
    if number(info, "aof_enabled") == 0:
        yield Risk(
            "no_aof",
            "Redis loses sessions when it goes down, since it has no append-only file: of a restart, only what its last"
            " snapshot has comes back, if there is one. Mend it, and its configuration",
            _set("appendonly", "yes"),
        )
    if fsync == "no":
        yield Risk(
            "fsync",
            "Redis loses the last half minute or so when its machine goes down, since it leaves writing to the system"
            " (appendfsync no). Mend it, and its configuration",
            _set("appendfsync", "everysec"),
        )
    if nearly:
        then = "writes are refused, and steps wait" if policy == "noeviction" else "it evicts keys"
        yield Risk(
            "memory",
            f"Redis has nearly used up its maxmemory of {size(limit)}; from then on {then}. Give it more, or keep fewer"
            " sessions (close them, or TOKENLOOM_IDLE_TTL)",
            _set("maxmemory", size(2 * limit)),
        )


def unchecked_of(info: Mapping[str, Any], fsync: str | None) -> Iterator[str]:
    """What could not be found out."""
    for name, field in (
        ("maxmemory-policy", "maxmemory_policy"),
        ("maxmemory", "maxmemory"),
        ("appendonly", "aof_enabled"),
    ):
        if field not in info:
            yield name
    if number(info, "aof_enabled") and fsync is None:
        yield "appendfsync"


def eviction(policy: str, limit: int, evicted: int) -> str:
    """What a policy of eviction means."""
    what = "keys that expire, leases of workers and closed sessions among them," if "volatile" in policy else "sessions"
    when = f"when its maxmemory of {size(limit)} is used up" if limit else "as soon as a maxmemory is set"
    so_far = f"; {evicted} keys are gone already" if evicted else ""
    return f"Redis evicts {what} {when} (maxmemory-policy {policy}){so_far}. Mend it, and its configuration"


def client_command(link: Redis, *, valkey: bool) -> str:
    """How a person calls this server's own client for it, but for the login."""
    pool = link.connection_pool
    options, client = pool.connection_kwargs, "valkey-cli" if valkey else "redis-cli"
    if isinstance(pool, SentinelConnectionPool):
        return client
    if path := options.get("path"):
        return f"{client} -s {path}"
    host, port = options.get("host", "localhost"), options.get("port", 6379)
    where = "" if host in ("localhost", "127.0.0.1") else f" -h {host}"
    return f"{client}{where}{'' if port == 6379 else f' -p {port}'}{' --tls' if speaks_tls(link) else ''}"


def number(info: Mapping[str, Any], field: str) -> int | None:
    """A number that the server may leave out."""
    value = info.get(field)
    return value if isinstance(value, int) else None


def size(count: int) -> str:
    """Bytes as the server's configuration has them, rounded up to whole MiB."""
    return f"{-(-count // (1 << 20))}mb"


def _set(name: str, value: str) -> str:
    return f"config set {name} {value}"
