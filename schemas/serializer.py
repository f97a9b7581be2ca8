"""RQ's serializer for tokenloom's queues."""

from __future__ import annotations

from typing import Any

from .codec import decode, encode


class MsgpackSerializer:
    """What RQ 3.0 puts through a serializer: a job's (function, instance, args, kwargs), its meta, its return value.

    Everything else of a job (times, retries, dependencies, callbacks, webhooks, groups) RQ writes as fields of its own.
    Nothing is ever unpickled, so loading runs no code: data that is not plain msgpack raises CodecError, a ValueError.
    """

    @staticmethod
    def dumps(obj: Any) -> bytes:
        return encode(obj)

    @staticmethod
    def loads(data: bytes) -> Any:
        return decode(data)
