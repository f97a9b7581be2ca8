"""``tokenloom chat``."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field

import click

from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.generation import Generation

from .cli_options import with_client
from .client import Client
from .session import Session

HELP = """\
/rewind      take back the last turn
/rewind N    keep the first N tokens of the session
/clone       continue in a copy; the original stays as it is
/length      how many tokens the session has
/quit        leave; `tokenloom chat --session ID` comes back
Ctrl-C ends a reply early."""


@dataclass
class Chat:
    """A conversation at the terminal. ``turns`` has the session's length before each turn made here."""

    client: Client
    session: Session
    system: str | None
    max_tokens: int | None
    turns: list[int] = field(default_factory=list)

    def say(self, text: str) -> None:
        """One turn: sends the text, and prints the reply while it arrives."""
        length = self.session.length() or 0
        messages = [{"role": "user", "content": text}]
        if self.system is not None and length == 0:
            messages.insert(0, {"role": "system", "content": self.system})
        step = self.session.step(messages=messages, max_tokens=self.max_tokens)
        self.turns.append(length)
        pieces = step.stream_text()
        try:
            for piece in pieces:
                click.echo(piece, nl=False)
        except KeyboardInterrupt:
            step.cancel()
            step.result(timeout=30)
            click.secho(" (ended)", dim=True, nl=False)
        click.echo()

    def command(self, line: str) -> bool:
        """Does what a line beginning with a slash says; False when it was the last."""
        name, _, argument = line[1:].strip().partition(" ")
        if name in ("quit", "exit", "q"):
            return False
        if name == "rewind":
            self._rewind(argument.strip())
        elif name == "clone":
            (copy,) = self.session.clone()
            click.secho(f"continuing in {copy.id}, a copy of {self.session.id}", dim=True)
            self.session = copy
        elif name == "length":
            click.secho(f"{self.session.length() or 0} tokens", dim=True)
        else:
            click.secho(HELP, dim=True)
        return True

    def _rewind(self, argument: str) -> None:
        if argument and not argument.isdigit():
            click.secho(f"/rewind takes a number of tokens to keep, not {argument!r}", dim=True)
            return
        if not argument and not self.turns:
            click.secho("no turn of this conversation to take back; /rewind N keeps the first N tokens", dim=True)
            return
        to = int(argument) if argument else self.turns[-1]
        self.session.rewind(to)
        self.turns = [length for length in self.turns if length < to]
        click.secho(f"{to} tokens kept", dim=True)


@click.command()
@click.option("--session", "name", help="Go on with this session, or give a new one this id.")
@click.option("--system", help="System message of a new session.")
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens of one reply at most.")
@click.option("--temperature", type=click.FloatRange(0, 100), help="Of a new session; 0 is greedy.")
@click.option("--seed", type=click.IntRange(0, (1 << 64) - 1), help="Of a new session.")
@with_client
def chat(
    client: Client,
    name: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
) -> None:
    """Talk with the model. /help lists what can be typed besides."""
    defaults = None if temperature is None else Generation(temperature=float(temperature))
    session = client.open(name, seed=seed, defaults=defaults, exist_ok=name is not None)
    conversation = Chat(client, session, system, max_tokens)
    terminal = sys.stdin.isatty()
    if terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() line editing
    click.secho(f"session {session.id} (/help, /quit)", dim=True, err=not terminal)
    while True:
        try:
            line = input("> " if terminal else "")
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return
        if not line.strip():
            continue
        try:
            if not line.startswith("/"):
                conversation.say(line)
            elif not conversation.command(line):
                return
        except TokenloomError as error:
            click.secho(error.body.message, fg="red", err=True)
