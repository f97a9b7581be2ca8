"""The ``tokenloom`` command: for people, not for services."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import NoReturn

import click

from .cli_chat import chat
from .cli_views import schema, sessions, tail

#: Entry points of this group are further subcommands: click commands.
GROUP = "tokenloom.commands"


class Commands(click.Group):
    """The commands here and those of the entry-point group, which are imported only when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *(entry.name for entry in entry_points(group=GROUP))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        entry = next(iter(entry_points(group=GROUP, name=cmd_name)), None)
        return None if entry is None else _load(entry)


def _load(entry: EntryPoint) -> click.Command:
    try:
        command = entry.load()
    except ImportError as error:
        return _broken(entry.name, str(error))
    if not isinstance(command, click.Command):
        return _broken(entry.name, f"{entry.value} is not a click command")
    return command


def _broken(name: str, why: str) -> click.Command:
    """In place of a command that cannot be loaded, so that the others still can."""

    @click.command(name, help=f"(cannot be loaded: {why})", context_settings={"ignore_unknown_options": True})
    @click.argument("anything", nargs=-1, type=click.UNPROCESSED)
    def broken(anything: tuple[str, ...]) -> NoReturn:
        raise click.ClickException(f"the command {name} cannot be loaded: {why}")

    return broken


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tokenloom")
def main() -> None:
    """Token generation through a Redis queue: many sessions, one batched forward.

    The worker itself is RQ's:

    \b
        rq worker -w tokenloom.worker.BatchWorker -S tokenloom.schemas.MsgpackSerializer steps
    """  # noqa: D301 - click's mark before lines that stay as they are


for _command in (chat, schema, sessions, tail):
    main.add_command(_command)
