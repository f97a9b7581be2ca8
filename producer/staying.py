"""What stays in the process that made it."""

from __future__ import annotations

from typing import Any, ClassVar


class Stays:
    """Holds connections to Redis, which no other process can use.

    Pickling it, as multiprocessing's `spawn` and `forkserver` do with what they are given, raises TypeError with what
    to do instead. A forked process may go on with what it inherits: the pool opens connections of its own there.
    """

    _instead: ClassVar[str] = "make a Client there, by the same URL, and ask it for the same"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"{type(self).__name__} holds connections and stays in its process: {self._instead}")
