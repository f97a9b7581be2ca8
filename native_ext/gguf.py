"""The metadata of a model file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tokenloom.native_ext.native import core


def read_metadata(path: str | os.PathLike[str] | Path) -> dict[str, Any]:
    """The key-values of a GGUF file under their GGUF names, in file order.

    Integers are ``int``, floats ``float``, arrays lists. Strings are decoded as UTF-8 with ``surrogateescape``, so that
    ``value.encode("utf-8", "surrogateescape")`` gives the file's bytes also where they are not UTF-8.

    Raises ModelError, naming the file and what is wrong with it.
    """
    metadata: dict[str, Any] = core.read_metadata(os.fsencode(path))
    return metadata
