"""Imports the compiled module ``tokenloom.native_ext._core``, with errors that say what to do."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from tokenloom.native_ext.engine import EngineError

if TYPE_CHECKING:
    from types import ModuleType

_LIBRARIES = ("ggml-base", "ggml-cpu")


class NativeError(EngineError, ImportError):
    """The native module cannot be used here; the message says why."""


def refuse_free_threading() -> None:
    """Raises NativeError on a Python without the GIL, which guards what engines, sampling and the worker share."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NativeError(
            f"this is a free-threaded build of Python {sys.version.split()[0]}, which tokenloom does not run on:"
            f" use an ordinary build, such as python3.{sys.version_info.minor}"
        )


def _preload() -> None:
    """Load ggml's libraries from the package ``libggml``, wherever it is installed.

    The module looks for them beside its own package. When the two are in different places (a user's site-packages over
    the system's), libraries loaded before it are taken instead.
    """
    spec = importlib.util.find_spec("libggml")
    if spec is None:
        raise NativeError(
            "ggml's shared libraries are missing: install the package libggml-python in the version tokenloom pins"
        )
    suffix = "dylib" if sys.platform == "darwin" else "so"
    for folder in spec.submodule_search_locations or []:
        for name in _LIBRARIES:
            for library in sorted(Path(folder).glob(f"lib*/lib{name}.{suffix}")):
                ctypes.CDLL(str(library))


def _import() -> ModuleType:
    refuse_free_threading()
    try:
        return _module()
    except NativeError as error:
        if "libggml" not in str(error):
            raise
    _preload()
    return _module()


def _module() -> ModuleType:
    try:
        from tokenloom.native_ext import _core
    except ModuleNotFoundError as error:
        raise NativeError("tokenloom's native module is not built: install tokenloom with pip") from error
    except ImportError as error:
        raise NativeError(str(error)) from error
    return _core


core = _import()
