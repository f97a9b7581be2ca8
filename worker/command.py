"""``tokenloom worker``: RQ's worker command with the class and the serializer filled in, and a list of all settings."""

from __future__ import annotations

import click
from pydantic_core import PydanticUndefined

from tokenloom.schemas.keys import DEFAULT_QUEUE

from .settings import PREFIX, SettingsError, WorkerSettings, load_settings

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
    await_redis(arguments)
    main(args=given, prog_name="rq")


def await_redis(arguments: tuple[str, ...]) -> None:
    """Return when there is a Redis where RQ will look for it.

    Raises click.ClickException when there is none in time, with what to do, and SystemExit for settings that are wrong,
    and for a signal that came meanwhile.
    """
    from rq.cli.helpers import CliConfig
    from rq.cli.workers import worker as rq_worker
    from rq.logutils import setup_loghandlers

    from . import logs
    from .arrival import NoRedis, StoppedWaiting, log, wait_for_redis

    try:
        settings = load_settings()
    except SettingsError as error:
        raise SystemExit(f"tokenloom: {error}") from None
    given = rq_worker.make_context("worker", list(arguments), resilient_parsing=True).params
    try:
        connection = CliConfig(**given).connection
    except ValueError as error:
        raise click.ClickException(f"where Redis is said to be makes no sense: {error}") from None
    except Exception:  # an option or a module that RQ cannot read, and which it says more of
        return
    logs.use(settings.log, given.get("name") or "")
    level = "DEBUG" if given.get("verbose") else "WARNING" if given.get("quiet") else given.get("logging_level")
    setup_loghandlers(level, given["date_format"], given["log_format"])
    try:
        wait_for_redis(connection, settings.redis_wait)
    except NoRedis as error:
        raise click.ClickException(str(error)) from None
    except StoppedWaiting:
        log.info("tokenloom: stopped on request while Redis was away")
        raise SystemExit(0) from None
    finally:
        connection.close()


def rq_arguments(arguments: tuple[str, ...]) -> list[str]:
    """The arguments of `rq` for these of ours."""
    from rq.cli.workers import worker as rq_worker

    given = rq_worker.make_context("worker", list(arguments), resilient_parsing=True).params
    queues = [] if given.get("queues") or given.get("config") else [DEFAULT_QUEUE]
    return ["worker", "-w", WORKER_CLASS, "-S", SERIALIZER, *arguments, *queues]
