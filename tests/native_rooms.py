"""Which folders of native_ext/src may include which: the arrows point one way.

Run by `make lint`: exit code 1, and a line for each include that goes against them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "native_ext" / "src"

#: Lowest first. A room knows itself and those before it that stand beside its name.
ROOMS = {
    "system": "",
    "gguf": "system",
    "kernels": "system",
    "packing": "system gguf kernels",
    "cache": "system kernels",
    "attention": "system kernels cache",
    "models": "system gguf packing attention",
    "sampling": "system kernels",
    "graph": "system kernels packing cache attention models",
    "engine": "system kernels cache models sampling graph",
    "bindings": "system gguf kernels packing cache attention models sampling graph engine",
}


def violations(sources: Path) -> Iterator[str]:
    """A line for every include that its room may not have, and every file that is in no room."""
    for path in sorted(sources.rglob("*.*")):
        if path.suffix not in {".h", ".cpp"}:
            continue
        place = path.relative_to(sources)
        room = place.parts[0]
        if room not in ROOMS:
            yield f"{place}: not in a room; rooms are {', '.join(ROOMS)}"
            continue
        for included in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            other = included.split("/")[0]
            if other != room and other not in ROOMS[room].split():
                yield f"{place} includes {included}: {room} may include {ROOMS[room] or 'nothing else'}"


def main() -> int:
    """For `make lint`."""
    found = list(violations(SOURCES))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
