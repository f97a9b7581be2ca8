"""``tokenloom worker``: RQ's worker command with the class and the serializer filled in, and a list of all settings."""

from __future__ import annotations

import os

import click
from pydantic_core import PydanticUndefined

from tokenloom.schemas.keys import DEFAULT_QUEUE

from .settings import PREFIX, WorkerSettings

WORKER_CLASS = "tokenloom.worker.BatchWorker"
SERIALIZER = "tokenloom.schemas.MsgpackSerializer"


class SettingsInHelp(click.Command):
    """A command whose help ends with every setting, its default and its meaning."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The settings, as a table."""
        with formatter.section("Settings (environment variables)"):
            formatter.write_dl(setting_rows(), col_max=40)


def setting_rows() -> list[tuple[str, str]]:
    """Every setting: the variable, and its description with the default."""
    rows = []
    for name, field in WorkerSettings.model_fields.items():
        default = field.get_default(call_default_factory=False)
        shown = "" if default is None or default is PydanticUndefined else value_text(default)
        # what is required has none, and says so itself
        end = "" if name == "model" else f"  [default: {shown or 'none'}]"
        rows.append((f"{PREFIX}{name.upper()}", f"{field.description}{end}"))
    return rows


def value_text(value: object) -> str:
    """A default as one would write it into the environment."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (frozenset, set)):
        return ",".join(sorted(map(str, value)))
    return str(value)


@click.command(
    "worker",
    cls=SettingsInHelp,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[RQ OPTIONS]",
    short_help="Serve queues with a model; lists all settings.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[QUEUE]...")
def worker(arguments: tuple[str, ...]) -> None:
    """Serve queues (default: steps) with the model that TOKENLOOM_MODEL names.

    This is RQ's own worker command with two options filled in:

    \b
        rq worker -w tokenloom.worker.BatchWorker -S tokenloom.schemas.MsgpackSerializer steps

    All its other options may be given here as well: --url, --name, --burst, --max-jobs, --with-scheduler, ...;
    `rq worker --help` lists them.
    """  # noqa: D301 - click's mark before lines that stay as they are
    from rq.cli.cli import main
    from rq.cli.workers import worker as _  # noqa: F401 - adds the command

    given = rq_arguments(arguments)
    check_redis(arguments)
    main(args=given, prog_name="rq")


def check_redis(arguments: tuple[str, ...]) -> None:
    """Raises click.ClickException when there is no Redis where RQ would look for it, with what to do."""
    from redis import Redis
    from redis.exceptions import ConnectionError, TimeoutError
    from rq.cli.workers import worker as rq_worker

    given = rq_worker.make_context("worker", list(arguments), resilient_parsing=True).params
    if given.get("config"):  # a Python module, which RQ imports
        return
    url = given.get("url") or os.environ.get("RQ_REDIS_URL") or "redis://localhost:6379/0"
    try:
        with Redis.from_url(url) as client:
            client.ping()
    except (ConnectionError, TimeoutError, ValueError) as error:
        address = url.rpartition("@")[2]
        raise click.ClickException(
            f"no Redis at {address} ({error}): start one, for example with `valkey-server`, or name another with --url "
            "or RQ_REDIS_URL"
        ) from None


def rq_arguments(arguments: tuple[str, ...]) -> list[str]:
    """The arguments of `rq` for these of ours."""
    from rq.cli.workers import worker as rq_worker

    given = rq_worker.make_context("worker", list(arguments), resilient_parsing=True).params
    queues = [] if given.get("queues") or given.get("config") else [DEFAULT_QUEUE]
    return ["worker", "-w", WORKER_CLASS, "-S", SERIALIZER, *arguments, *queues]
