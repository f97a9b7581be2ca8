"""The names of everything in Redis. One hash tag a session, so that a session's keys share a cluster slot."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_NAMESPACE = "tokenloom"
DEFAULT_QUEUE = "steps"


@dataclass(frozen=True, slots=True)
class Keys:
    """Key and channel names under one namespace."""

    namespace: str = DEFAULT_NAMESPACE

    def session(self, session: str) -> str:
        """Hash: v, model, seed, defaults, length, owner, epoch, parent, forked_at, state, tenant, created, used."""
        return f"{self.namespace}:{{{session}}}:session"

    def log(self, session: str) -> str:
        """String: 4 bytes a token, little-endian; low 24 bits the id, bit 24 set when the token was generated."""
        return f"{self.namespace}:{{{session}}}:log"

    def steps(self, session: str) -> str:
        """Hash: job id -> msgpack of its StepRecord, or JobRecord when the job is no step."""
        return f"{self.namespace}:{{{session}}}:steps"

    def finished(self, session: str) -> str:
        """List: ids of the finished jobs that ``steps`` still remembers, oldest first."""
        return f"{self.namespace}:{{{session}}}:finished"

    def cancels(self, session: str) -> str:
        """Hash with a TTL: step id -> unix time at which it was asked to end. The one key of a session that producers
        write.
        """
        return f"{self.namespace}:{{{session}}}:cancels"

    def events(self, session: str) -> str:
        """Stream of events, each entry one field ``e`` with the event's msgpack. The contract for readers."""
        return f"{self.namespace}:{{{session}}}:events"

    def tokens(self, session: str) -> str:
        """Pub/sub channel: msgpack [stream id, event] for readers that want no replay."""
        return f"{self.namespace}:{{{session}}}:tokens"

    @property
    def sessions(self) -> str:
        """Sorted set: session id by last use (unix seconds)."""
        return f"{self.namespace}:sessions"

    @property
    def workers(self) -> str:
        """Set of worker names seen."""
        return f"{self.namespace}:workers"

    def worker(self, name: str) -> str:
        """Hash with a TTL: the heartbeat of a live worker, its incarnation, model and stats."""
        return f"{self.namespace}:worker:{name}"

    def worker_sequences(self, name: str) -> str:
        """Hash: session -> msgpack [sequence, cached length], the persisted session table."""
        return f"{self.namespace}:worker:{name}:sequences"

    def worker_jobs(self, name: str) -> str:
        """Sorted set: ids of the jobs this worker has claimed, by order of claim."""
        return f"{self.namespace}:worker:{name}:jobs"

    def worker_inbox(self, name: str) -> str:
        """List: ids of jobs routed to this worker because it owns their session."""
        return f"{self.namespace}:worker:{name}:inbox"
