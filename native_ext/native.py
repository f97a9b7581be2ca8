"""Imports the compiled module ``tokenloom.native_ext._core``, with errors that say what to do."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_LIBRARIES = ("ggml-base", "ggml-cpu")


def _preload() -> None:
    """Load ggml's libraries from the package ``libggml``, wherever it is installed.

    The module looks for them beside its own package. When the two are in different places (a user's site-packages over
    the system's), libraries loaded before it are taken instead.
    """
    spec = importlib.util.find_spec("libggml")
    if spec is None:
        raise ImportError(
            "ggml's shared libraries are missing: install the package libggml-python in the version tokenloom pins"
        )
    suffix = "dylib" if sys.platform == "darwin" else "so"
    for folder in spec.submodule_search_locations or []:
        for name in _LIBRARIES:
            for library in sorted(Path(folder).glob(f"lib*/lib{name}.{suffix}")):
                ctypes.CDLL(str(library))


def _import() -> ModuleType:
    try:
        from tokenloom.native_ext import _core
    except ModuleNotFoundError as error:
        raise ImportError("tokenloom's native module is not built: install tokenloom with pip") from error
    except ImportError as error:
        if "libggml" not in str(error):
            raise
        _preload()
        from tokenloom.native_ext import _core
    return _core


core = _import()
