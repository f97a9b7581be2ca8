"""The lines of docs/security.md that make users of Redis."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"
PASSWORD = "SECRET"


def acl_lines() -> dict[str, list[str]]:
    """User -> the arguments of its ACL SETUSER, the name first."""
    blocks = re.findall(r"^```\n(ACL SETUSER [^`]*)^```", DOCUMENT.read_text(), re.MULTILINE)
    commands = [block.split()[2:] for block in blocks]
    return {arguments[0]: arguments for arguments in commands}
