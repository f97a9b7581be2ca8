"""What a chat message must look like before a template sees it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenloom.worker.text.errors import TextError
from tokenloom.worker.text.tokenizer import checked_text

Message = Mapping[str, Any]
_DEPTH = 32
# Roles go into control tokens in some templates (<|user|>), so they are not guarded like contents: they must be plain
# words.
_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def checked_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Plain dicts with a role each and nothing in them that is not JSON. Raises TextError naming the field."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise TextError(f"messages must be a list of messages, got {type(messages).__name__}")
    if not messages:
        raise TextError("messages is empty: a conversation needs at least one message")
    checked = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise TextError(f"{where} must be a mapping with role and content, got {type(message).__name__}")
        role = message.get("role")
        if not isinstance(role, str) or _ROLE.fullmatch(role) is None:
            raise TextError(f"{where}.role must be a word like 'user', got {role!r}")
        checked.append({str(key): _plain(value, f"{where}.{key}", _DEPTH) for key, value in message.items()})
    return checked


def checked_tools(tools: Sequence[Any] | None) -> list[Any] | None:
    """The tools' descriptions as plain JSON values. Raises TextError naming the field."""
    if tools is None:
        return None
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise TextError(f"tools must be a list, got {type(tools).__name__}")
    return [_plain(tool, f"tools[{index}]", _DEPTH) for index, tool in enumerate(tools)] or None


def _plain(value: Any, where: str, depth: int) -> Any:
    if depth == 0:
        raise TextError(f"{where} is nested deeper than {_DEPTH} levels")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return checked_text(value, where)
    if isinstance(value, Mapping):
        keys = {key: checked_text(key, f"a key of {where}") for key in value}
        return {keys[key]: _plain(item, f"{where}.{key}", depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{index}]", depth - 1) for index, item in enumerate(value)]
    raise TextError(
        f"{where} must be text, a number, true, false, null, a list or a mapping, got {type(value).__name__}"
    )
