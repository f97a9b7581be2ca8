"""What a service imports to use tokenloom: no numpy, no model, only Redis.

from tokenloom.producer import Client

session = Client("redis://localhost:6379/0").open()
for text in session.step("Once upon a time", max_tokens=64).stream_text():
    print(text, end="", flush=True)
"""

from tokenloom.schemas import (
    CellsExhausted,
    ChatMessage,
    ContextFull,
    Event,
    Generation,
    InvalidRequest,
    LengthMismatch,
    NoSuchSession,
    Overloaded,
    SessionExists,
    StepResult,
    Stopped,
    TokenloomError,
    Unsupported,
    WorkerFailed,
)

from .aclient import AsyncClient, AsyncFollower
from .asession import AsyncSession
from .astep import AsyncPending, AsyncStep
from .client import Client, Follower
from .enqueue import JobSpec
from .errors import EventsLost, NoSuchStep, RedisUnavailable, StepFailed
from .listing import SessionInfo
from .session import Session
from .step import Pending, Step

__all__ = [
    "AsyncClient",
    "AsyncFollower",
    "AsyncPending",
    "AsyncSession",
    "AsyncStep",
    "CellsExhausted",
    "ChatMessage",
    "Client",
    "ContextFull",
    "Event",
    "EventsLost",
    "Follower",
    "Generation",
    "InvalidRequest",
    "JobSpec",
    "LengthMismatch",
    "NoSuchSession",
    "NoSuchStep",
    "Overloaded",
    "Pending",
    "RedisUnavailable",
    "Session",
    "SessionExists",
    "SessionInfo",
    "Step",
    "StepFailed",
    "StepResult",
    "Stopped",
    "TokenloomError",
    "Unsupported",
    "WorkerFailed",
]
