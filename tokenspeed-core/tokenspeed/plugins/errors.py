# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What can go wrong with plugins. Each error says what, where, and the one thing to do."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable

from tokenspeed.plugins.discover.origin import complain, reinstall
from tokenspeed.plugins.load.whose_line import chain, whose_line


class PluginError(Exception):
    """Base of all; ``str()`` is the whole message."""

    def __init__(self, what: str, *, where: str, fix: str) -> None:
        super().__init__(f"{what}\n  where: {where}\n  to do: {fix}")
        self.what = what
        self.where = where
        self.fix = fix

    @property
    def reason(self) -> str:
        """What is wrong in one line, for tables."""
        return self.what.partition("\n")[0]

    def with_more(self, what: str = "", fix: str = "") -> PluginError:
        """The same error, and what it means here; cause and class stay."""
        more = type(self)(
            "\n  ".join(filter(None, (self.what, what))),
            where=self.where,
            fix=", ".join(filter(None, (self.fix, fix))),
        )
        more.__cause__ = self.__cause__
        return more


class ManifestError(PluginError):
    """A manifest that is absent, unreadable, or says something it may not."""


class ContractError(PluginError):
    """A plugin written against a contract number that this engine does not serve."""


class BuildError(PluginError):
    """A shared library that is missing, or was built for another environment than this one."""


class ListError(PluginError):
    """An entry of an allow or deny list that cannot be read, or lists that leave nothing."""


class NotWiredError(PluginError):
    """A plugin that was activated and does nothing."""


class DuplicateClaimError(PluginError):
    """Two distributions claim the same key; ``owners`` are both, as name and version."""

    owners: tuple[str, ...] = ()


class UnknownNameError(PluginError):
    """Somebody named what does not exist."""


class DrafterModelError(PluginError):
    """A drafter without the model that it guesses with, or a model for one that has none."""


class WheelAbsentError(PluginError):
    """No installed distribution provides what is needed."""


class DeclinedError(PluginError):
    """What was asked for works, but not here."""


class AmbiguousError(PluginError):
    """Several candidates are equally good and the operator must choose."""


class LoadError(PluginError):
    """A plugin's code raised; the cause is chained and part of the message."""


class BrokenPromiseError(PluginError):
    """A plugin's code does not provide what its manifest says."""


class PlanMismatchError(PluginError):
    """A child process resolved its plugins differently from its parent."""


CLOSE = 0.75
"""Share of letters that a misspelt name has in common with what was meant."""

_FEW = 8


def did_you_mean(name: str, known: Iterable[str], command: str = "") -> str:
    """A suggestion to put in front of an error's fix, or the list of what there is.

    Args:
        command: that shows the list, if it is long.
    """
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=1, cutoff=CLOSE)
    if close:
        return f'did you mean "{close[0]}"?'
    if command and len(names) > _FEW:
        return f"see what there is: {command}"
    return f"there is: {', '.join(names)}" if names else "there is none"


def describe(error: BaseException) -> str:
    """The message of an error and of all its causes, for people."""
    if isinstance(error, PluginError):
        return str(error)
    return "\n  caused by ".join(_chain(error))


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error that will be kept: their frames keep all locals alive."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__


def load_failed(
    error: BaseException,
    *,
    what: str,
    entry: str,
    owner: str,
    distribution: str,
    verb: str = "load",
) -> LoadError:
    """A LoadError for what a plugin's code raised. Raise it ``from error``.

    Args:
        entry: value of the entry point, the place when no line of the plugin's ran.
        verb: what it failed to do.
    """
    causes = "\n  cause: ".join(_chain(error))
    return LoadError(
        f"{what} of {owner} failed to {verb}\n  cause: {causes}",
        where=whose_line(error) or f"entry point {entry}",
        fix=_fix_for(error, distribution),
    )


def _chain(error: BaseException) -> list[str]:
    return [_text(cause) for cause in chain(error)]


def _text(error: BaseException) -> str:
    """Class, message and notes; without the line that a SyntaxError quotes, which is long."""
    lines = traceback.format_exception_only(error)
    if isinstance(error, SyntaxError):
        lines = [line for line in lines if not line.startswith("  ")]
    return "".join(lines).rstrip()


def _fix_for(error: BaseException, distribution: str) -> str:
    *_, root = chain(error)
    if isinstance(root, ModuleNotFoundError):
        return f"run 'pip check', then install what {distribution} needs: {reinstall(distribution)}"
    if isinstance(root, OSError | ImportError) and ".so" in str(root):
        return (
            f"a native library does not load; install the build of {distribution} for this "
            f"machine's toolkit, or remove it: pip uninstall {distribution}"
        )
    return complain(distribution)
