"""The worker: one process that serves every session of its queues in shared batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch_worker import BatchWorker

__all__ = ["BatchWorker"]


def __getattr__(name: str) -> Any:
    """BatchWorker on first use: its imports are heavy, and settings are useful without them."""
    if name == "BatchWorker":
        from .batch_worker import BatchWorker

        return BatchWorker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
