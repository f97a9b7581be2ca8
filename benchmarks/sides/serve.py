"""The child's end: makes the side named on the command line from the first line, then answers one line at a time.

A side module has a function ``start(settings)`` that returns an object with ``about()``, ``close()`` and the methods
that it can be asked; all take keyword arguments and return something that JSON can hold, as a dict.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import traceback
from typing import Any


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    settings = json.loads(sys.stdin.readline())
    try:
        side: Any = importlib.import_module(f"benchmarks.sides.{sys.argv[1]}").start(settings)
        answer(side.about())
    except Exception as error:
        traceback.print_exc()
        answer({"failed": summary(error)})
        os._exit(1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(getattr(side, request["method"])(**request["arguments"]))
        except Exception as error:
            traceback.print_exc()
            answer({"failed": summary(error)})
    side.close()
    sys.stderr.flush()
    os._exit(0)  # a library's threads may outlive a plain exit


def summary(error: Exception) -> str:
    """The error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r"failed at \S+:\d+:", "failed:", " ".join(lines))  # no folders of whoever built a library
    kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
    return kind + text[:300]


if __name__ == "__main__":
    main()
