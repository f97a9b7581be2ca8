"""The options that every command which needs Redis has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.keys import DEFAULT_NAMESPACE, DEFAULT_QUEUE

from .client import Client
from .connect import DEFAULT_URL, URL_VARIABLES
from .errors import EventsLost, NoSuchStep

F = TypeVar("F", bound=Callable[..., Any])


def with_client(function: F) -> F:
    """Gives the command --url, --queue and --namespace, passes it a Client, and turns our errors into click's."""

    @click.option("--url", envvar=list(URL_VARIABLES), default=DEFAULT_URL, show_default=True, show_envvar=True)
    @click.option("--queue", envvar="TOKENLOOM_QUEUE", default=DEFAULT_QUEUE, show_default=True, show_envvar=True)
    @click.option(
        "--namespace", envvar="TOKENLOOM_NAMESPACE", default=DEFAULT_NAMESPACE, show_default=True, show_envvar=True
    )
    @functools.wraps(function)
    def command(url: str, queue: str, namespace: str, **rest: Any) -> Any:
        try:
            with Client(url, queue=queue, namespace=namespace) as client:
                return function(client, **rest)
        except TokenloomError as error:
            raise click.ClickException(error.body.message) from error
        except (ConnectionError, TimeoutError, EventsLost, NoSuchStep, ValueError) as error:
            raise click.ClickException(str(error)) from error

    return command  # type: ignore[return-value]
