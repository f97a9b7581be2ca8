"""The jinja2 environment that chat templates run in: what templates of the Hub expect, and limits.

A template comes with the model file, and its input from clients, so it runs in jinja2's sandbox without access to
attributes that begin with an underscore, and a render is stopped when it writes, adds up or iterates too much. That
catches mistakes; a template made to use up memory still could (by padding, say), so take model files from where you
trust.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenloom.worker.text.errors import TextError

#: The most characters that a render may give, or build in one string on the way.
MAX_CHARACTERS = 4_000_000
#: How long a render may take, in seconds, and after how many rounds of its loops the clock is looked at.
MAX_SECONDS = 5.0
_ROUNDS = 256
_GROWING = ("*", "**", "+")


class _Raised(TemplateError):
    """The template itself refused, through raise_exception()."""


class _Unmarked(Extension):
    """``{% generation %}`` marks what an assistant wrote, for training. Rendered as what is inside it."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Rounds:
    """An iterable that counts its rounds against the render's limits and otherwise acts like the original in a loop."""

    def __init__(self, source: Iterable[Any], count: Callable[[], None]) -> None:
        self._source = source
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        for item in self._source:
            self._count()
            yield item


class _SizedRounds(_Rounds):
    _source: Any

    def __len__(self) -> int:
        return len(self._source)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox for one chat template. One render at a time."""

    intercepted_binops = frozenset(_GROWING)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Unmarked])
        self.filters["tojson"] = _tojson
        self.filters["_rounds"] = self._rounds
        self.filters["_joined"] = self._joined
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self._deadline = float("inf")
        self._left = _ROUNDS

    def run(self, template: Template, variables: dict[str, Any]) -> str:
        """What the template makes of the variables. Raises TextError with the template's message, or with the limit."""
        self._deadline = time.monotonic() + MAX_SECONDS
        self._left = _ROUNDS
        parts: list[str] = []
        size = 0
        try:
            for part in template.generate(variables):
                size += len(part)
                if size > MAX_CHARACTERS:
                    raise TextError(f"chat template: its output exceeds the limit of {MAX_CHARACTERS} characters")
                parts.append(part)
        except _Raised as error:
            raise TextError(f"chat template: {error.message}") from None
        except TemplateError as error:
            raise TextError(f"chat template: {type(error).__name__}: {error.message}") from error
        except RecursionError:
            raise TextError("chat template: too deep a recursion") from None
        except MemoryError:
            raise TextError("chat template: out of memory") from None
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            if isinstance(error, TextError):
                raise
            # What Python says when a template meets messages of a shape that it was not written for.
            raise TextError(
                f"chat template: cannot be applied to these messages: {type(error).__name__}: {error}"
            ) from error
        return "".join(parts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_rounds", [], [], None, None, lineno=loop.lineno)
        for joined in list(tree.find_all(nodes.Concat)):
            # a ~ b, whose operands no hook sees: handed to a filter as a list.
            joined.nodes = [nodes.Filter(nodes.List(joined.nodes), "_joined", [], [], None, None, lineno=joined.lineno)]
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self._count()
        if operator == "*":
            self._check_product(left, right)
            self._check_product(right, left)
        if operator == "**" and isinstance(left, int) and isinstance(right, int) and abs(right) > 64:
            raise TextError(f"chat template: the exponent {right} exceeds the limit of 64")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, Sized):
            self._check_size(len(result))
        return result

    def _check_product(self, what: Any, times: Any) -> None:
        if isinstance(what, Sized) and isinstance(times, int):
            self._check_size(len(what) * times)

    @staticmethod
    def _check_size(size: int) -> None:
        if size > MAX_CHARACTERS:
            raise TextError(
                f"chat template: builds a value of {size} characters or items, the limit is {MAX_CHARACTERS}"
            )

    def _count(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._left = _ROUNDS
            if time.monotonic() > self._deadline:
                raise TextError(f"chat template: takes longer than the limit of {MAX_SECONDS:g} seconds")

    def _rounds(self, source: Any) -> Any:
        if isinstance(source, (str, list, tuple, dict, range)):
            return _SizedRounds(source, self._count)
        return _Rounds(source, self._count)

    def _joined(self, values: list[Any]) -> str:
        self._count()
        text = "".join(str(value) for value in values)
        self._check_size(len(text))
        return text


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as ``transformers`` writes it: unlike jinja2's own filter, nothing escaped for HTML, and in order."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise _Raised(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
