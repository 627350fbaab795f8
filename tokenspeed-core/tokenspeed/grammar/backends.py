# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The grammar backends of a plan: each constraint has its own choice, and what is chosen is opened
when it is first used.

    backends = Backends(plan, lambda: read_vocabulary(folder, size))
    compiled = backends.compile(constraint)
    grammar = backends.library(compiled.backend).load(compiled.data)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from tokenspeed_sdk.contracts.grammar import KINDS, Constraint, GrammarError
from tokenspeed_sdk.contracts.probe import Accept, Decline
from tokenspeed_sdk.json_schema import MAX_DEPTH, depth

from tokenspeed.plugins.load.activate import activate, broken, call
from tokenspeed.plugins.load.plugin_code import as_failure

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.grammar import GrammarBackend, GrammarLibrary, Vocabulary
    from tokenspeed_sdk.contracts.probe import Verdict

    from tokenspeed.plugins.plan import Planned, PluginPlan

INSTALL = "pip install tokenspeed-llguidance"
_NESTED = ("json_schema", "structural_tag")
_SIMPLE = {"json_schema": "{}", "regex": "a", "ebnf": 'root ::= "a"'}


Phase: TypeAlias = Literal["opening", "compiling"]
"""What is about to be done: what any constraint needs, or the work on this one."""

Begins: TypeAlias = Callable[[Phase], None]
"""Told of it before."""


class OpenError(GrammarError):
    """A backend that is wanted cannot be opened: no constraint is at fault."""


class Compiled(msgspec.Struct, frozen=True):
    """A constraint as its backend keeps it.

    Attributes:
        seconds: that compiling took, without the opening of the backend.
    """

    backend: str
    data: bytes
    seconds: float = 0.0


def read_backend(planned: Planned) -> GrammarBackend:
    """Load one and check what it is. LoadError, BrokenPromiseError."""
    backend = call(planned)
    if getattr(backend, "name", None) != planned.name:
        raise broken(planned, f"calls itself {getattr(backend, 'name', None)!r}")
    for method in ("accept", "open"):
        if not callable(getattr(backend, method, None)):
            raise broken(planned, f"has no method {method}")
    backend_: GrammarBackend = backend
    return backend_


def kinds_of(backend: GrammarBackend) -> list[str]:
    """The kinds of which it accepts a simple constraint."""
    tag = '{"type": "structural_tag", "format": {"type": "any_text"}}'
    simple = (Constraint(kind, _SIMPLE.get(kind, tag)) for kind in KINDS)
    return [each.kind for each in simple if isinstance(backend.accept(each), Accept)]


class Backends:
    """Those of one plan, for the vocabulary of one model."""

    def __init__(self, plan: PluginPlan, vocabulary: Callable[[], Vocabulary]) -> None:
        """``vocabulary``: called once, when the first backend is opened."""
        self._provisions = plan.of("grammar")
        self._vocabulary = vocabulary
        self._read: Vocabulary | None = None
        self._backends: dict[str, GrammarBackend] | None = None
        self._libraries: dict[str, GrammarLibrary] = {}

    def verdicts(self, constraint: Constraint) -> dict[str, Verdict]:
        """What each says to a constraint, the best first."""
        if constraint.kind in _NESTED and depth(constraint.text) > MAX_DEPTH:
            why = f"is not asked: it is nested more than {MAX_DEPTH} deep"
            return {name: Decline(why) for name in self._loaded()}
        said = {name: _accept(each, constraint) for name, each in self._loaded().items()}
        return dict(sorted(said.items(), key=lambda item: (-_score(item[1]), item[0])))

    def compile(self, constraint: Constraint, begins: Begins = lambda _: None) -> Compiled:
        """By the best that honours all of it; the next, where that one fails.

        Raises:
            OpenError: none compiles it, and one that could cannot be opened.
            GrammarError: with what each backend says.
        """
        if not self._provisions:
            raise GrammarError(f"no grammar backend is installed: {INSTALL}")
        if not self._loaded():
            raise OpenError("no grammar backend can be loaded; 'ts plugins doctor' says why")
        begins("compiling")
        reasons, kind = [], GrammarError
        for name, verdict in self.verdicts(constraint).items():
            if isinstance(verdict, Decline):
                reasons.append(f"{name} {verdict.why}")
                continue
            try:
                return self.compile_by(name, constraint, begins)
            except OpenError as error:
                reasons.append(str(error))
                kind = OpenError
            except GrammarError as error:
                reasons.append(f"{name} says: {error}")
        raise kind("; ".join(reasons))

    def library(self, name: str, begins: Begins = lambda _: None) -> GrammarLibrary:
        """Opened. OpenError: it cannot be, or there is none of this name."""
        if name not in self._libraries:
            if name not in self._loaded():
                raise OpenError(f"there is no grammar backend {name!r} here")
            begins("opening")
            if self._read is None:
                self._read = self._vocabulary()
            try:
                self._libraries[name] = self._loaded()[name].open(self._read)
            except BaseException as raised:
                error = as_failure(raised, f"grammar backend {name}")
                raise OpenError(f"{name} cannot be opened: {_told(error)}") from error
        return self._libraries[name]

    def compile_by(
        self, name: str, constraint: Constraint, begins: Begins = lambda _: None
    ) -> Compiled:
        """By one backend, which accepts it. GrammarError."""
        library = self.library(name, begins)
        begins("compiling")
        start = time.perf_counter()
        try:
            data = library.compile(constraint)
        except GrammarError:
            raise
        except BaseException as raised:
            error = as_failure(raised, f"grammar backend {name}")
            raise GrammarError(f"its compiler failed: {_told(error)}") from error
        return Compiled(name, data, time.perf_counter() - start)

    def _loaded(self) -> dict[str, GrammarBackend]:
        if self._backends is None:
            active = activate(self._provisions, read_backend)
            self._backends = {a.planned.name: a.value for a in active if a.value is not None}
        return self._backends


def _accept(backend: GrammarBackend, constraint: Constraint) -> Verdict:
    try:
        return backend.accept(constraint)
    except BaseException as raised:
        return Decline(f"failed: {_told(as_failure(raised, f'grammar backend {backend.name}'))}")


def _score(verdict: Verdict) -> float:
    return verdict.score if isinstance(verdict, Accept) else float("-inf")


def _told(error: Any) -> str:
    return f"{type(error).__name__}: {error}"
