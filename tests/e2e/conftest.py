"""Fixtures of the tests from end to end: a client, and a reference of what undisturbed steps generate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from tokenloom.producer import Client
from valkey_server import ValkeyServer


@pytest.fixture
def client(valkey: ValkeyServer, redis: Redis) -> Iterator[Client]:
    """A producer's client of the shared server, emptied."""
    with Client(valkey.url) as made:
        yield made
