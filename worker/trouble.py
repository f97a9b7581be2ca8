"""What is wrong on the way to Redis, in words, and whether waiting may help."""

# mypy: disable-error-code="no-untyped-call"
# redis-py leaves some of what is called here without annotations.
from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    RedisError,
    TimeoutError,
)
from redis.sentinel import SentinelConnectionPool

from .retrying import transient

#: Seconds that a look at what answers may take.
LOOK = 2.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """``passing``: nobody has to mend anything, should the server only be late. ``text`` goes behind the address."""

    passing: bool
    text: str


def address(connection: Redis) -> str:
    """Where a client looks for its server, as a URL without user and password."""
    pool = connection.connection_pool
    options = pool.connection_kwargs
    if isinstance(pool, SentinelConnectionPool):
        sentinels: list[Any] = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
        places = ", ".join(f"{each.get('host')}:{each.get('port')}" for each in sentinels)
        return f"master {pool.service_name!r} of the sentinels at {places}"
    if path := options.get("path"):
        return f"unix://{path}"
    scheme = "rediss" if speaks_tls(connection) else "redis"
    return f"{scheme}://{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db', 0)}"


def speaks_tls(connection: Redis) -> bool:
    """Whether the client is set up for TLS."""
    return "ssl" in connection.connection_pool.connection_class.__name__.lower()


def trouble_with(connection: Redis, error: Exception) -> Trouble:
    """What an error of a client's first command means. May connect again, to see what it is that answers."""
    causes = list(_causes(error))
    login = _login(connection, error)
    if login is not None:
        return login
    if isinstance(error, BusyLoadingError):
        return Trouble(True, "it is loading its data")
    if isinstance(error, InvalidResponse):
        return Trouble(False, _misunderstood(connection, f"what answers there is no Redis ({error})"))
    tls = next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None)
    if tls is not None and not isinstance(tls, ssl.SSLEOFError):
        return Trouble(False, _of_tls(connection, tls))
    local = next((cause for cause in causes if isinstance(cause, (FileNotFoundError, PermissionError))), None)
    if isinstance(local, PermissionError):
        return Trouble(False, f"this user may not connect ({local.strerror})")
    if local is not None and speaks_tls(connection):
        return Trouble(False, f"a certificate or key that the settings name is not there ({local.strerror})")
    if not transient(error):
        return Trouble(False, str(error))
    return _away(connection, error, causes)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _login(connection: Redis, error: Exception) -> Trouble | None:
    if isinstance(error, NoPermissionError):
        return Trouble(False, f"this user of Redis may not do what a worker does ({error}): see docs/security.md")
    if not isinstance(error, AuthenticationError):
        return None
    if connection.connection_pool.connection_kwargs.get("password"):
        return Trouble(False, f"user or password is wrong ({error})")
    return Trouble(False, "a password is needed: name it in the URL, as in redis://USER:PASSWORD@HOST:PORT/0")


def _of_tls(connection: Redis, error: ssl.SSLError) -> str:
    why = str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not vouched for ({error.verify_message}): name the authority with ssl_ca_certs"
    if wants_certificate(why):
        return of_certificate(why)
    return _misunderstood(connection, f"no TLS can be agreed upon ({why})")


def wants_certificate(alert: str) -> bool:
    """Whether this is what a server says to clients without a certificate."""
    return "CERTIFICATE_REQUIRED" in alert or "HANDSHAKE_FAILURE" in alert


def of_certificate(alert: str) -> str:
    """What to do about that."""
    return f"it wants a certificate of ours ({alert}): name it with ssl_certfile and ssl_keyfile"


def _misunderstood(connection: Redis, otherwise: str) -> str:
    """Whether one side speaks TLS and the other does not; ``otherwise`` when that is not it."""
    if speaks_tls(connection):
        if answers_plainly(connection):
            return "it speaks no TLS: write redis:// instead of rediss://"
        alert = alert_of(connection)
        if wants_certificate(alert):
            return of_certificate(alert)
    elif answers_with_tls(connection):
        return "it speaks TLS: write rediss:// instead of redis://"
    return otherwise


def _away(connection: Redis, error: Exception, causes: list[BaseException]) -> Trouble:
    system = next((cause for cause in causes if isinstance(cause, OSError) and cause.errno is not None), None)
    if isinstance(system, socket.gaierror):
        return Trouble(True, f"the host's name is not known: {system.strerror}")
    if isinstance(system, (ConnectionRefusedError, FileNotFoundError)):
        return Trouble(True, f"nothing listens there: {system.strerror}")
    closed = isinstance(system, (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)) or "closed by" in str(error)
    connected = closed or system is None
    if connected and not isinstance(connection.connection_pool, SentinelConnectionPool):
        mismatch = _misunderstood(connection, "")
        if mismatch:
            return Trouble(False, mismatch)
        if isinstance(error, TimeoutError):
            return Trouble(True, "it does not answer: it hangs, or is something else than Redis")
        if closed:
            return Trouble(True, "it closes the connection and says nothing")
    return Trouble(True, system.strerror if system is not None and system.strerror else str(error).rstrip("."))


def answers_with_tls(connection: Redis) -> bool:
    """Whether a TLS server is where the client looks for one without."""
    try:
        with closing(_dial(connection)) as plain, closing(_looking().wrap_socket(plain)):
            return True
    except ssl.SSLError as error:
        return "ALERT" in str(error)  # it wants a certificate, another version: in TLS
    except OSError:
        return False


def alert_of(connection: Redis) -> str:
    """What a TLS server says when it closes a connection, "" for nothing. Whoever sends something may miss it."""
    try:
        with closing(_dial(connection)) as plain, closing(_looking().wrap_socket(plain)) as secure:
            secure.recv(1)
    except ssl.SSLError as error:
        return str(error)
    except OSError:
        pass
    return ""


def _looking() -> ssl.SSLContext:
    """Trusts anybody, for connections over which nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def answers_plainly(connection: Redis) -> bool:
    """Whether a Redis without TLS is where the client looks for one with."""
    try:
        with closing(_dial(connection)) as plain:
            plain.sendall(b"PING\r\n")
            return plain.recv(64).startswith((b"+PONG", b"-"))
    except OSError:
        return False


def _dial(connection: Redis) -> socket.socket:
    options = connection.connection_pool.connection_kwargs
    if path := options.get("path"):
        unix = socket.socket(socket.AF_UNIX)
        unix.settimeout(LOOK)
        try:
            unix.connect(path)
        except OSError:
            unix.close()
            raise
        return unix
    return socket.create_connection((options.get("host", "localhost"), options.get("port", 6379)), LOOK)


def is_sentinel(connection: Redis) -> bool:
    """Whether the server that answered is a Sentinel, which holds no data. False when it may not be asked."""
    try:
        info: dict[str, Any] = connection.info("server")
    except RedisError:
        return False
    return info.get("server_mode", info.get("redis_mode")) == "sentinel"  # Valkey's word, and Redis's
