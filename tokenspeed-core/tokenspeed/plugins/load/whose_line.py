# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The line of a plugin's code that an exception came from, past those of Python and of us."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import tokenspeed_sdk

_INSTALLED = {"site-packages", "dist-packages"}
_LOADERS = {"stevedore", "importlib_metadata"}
_OURS = (Path(__file__).resolve().parents[2], Path(tokenspeed_sdk.__file__).resolve().parent)
_PYTHON = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error and all that it came from, as a traceback shows them."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def whose_line(error: BaseException) -> str | None:
    """ "file:line", of the first cause that has one; None when no line of the plugin ran."""
    for cause in reversed(list(chain(error))):
        if isinstance(cause, SyntaxError) and cause.filename and Path(cause.filename).is_file():
            return f"{cause.filename}:{cause.lineno}"
        for frame in reversed(traceback.extract_tb(cause.__traceback__)):
            if not _is_ours(frame.filename):
                return f"{frame.filename}:{frame.lineno}"
    return None


def _is_ours(filename: str) -> bool:
    """Whether it is of Python, of what loads plugins, or no file at all."""
    if filename.startswith("<"):
        return True
    path = Path(filename).resolve()
    if any(path.is_relative_to(folder) for folder in _OURS) or _LOADERS & set(path.parts):
        return True
    in_python = any(path.is_relative_to(folder) for folder in _PYTHON)
    return in_python and not _INSTALLED & set(path.parts)
