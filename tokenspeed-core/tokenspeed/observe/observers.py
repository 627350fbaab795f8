# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The observers of a plan: loaded, checked hook by hook, and told every event.

    with load_observers(plan.plugins) as observers:
        events.add(observers.observe)

pluggy holds them: it finds the hooks of each and checks their signatures when one is registered.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pluggy
from tokenspeed_sdk.contracts.manifest import TOKEN_IDS
from tokenspeed_sdk.contracts.observer import HOOKS, ObserverHooks, TokensGenerated

from tokenspeed.observe.delivery import Delivery
from tokenspeed.plugins.discover.origin import mend
from tokenspeed.plugins.errors import LoadError, did_you_mean
from tokenspeed.plugins.load.activate import Active, activate, broken, call
from tokenspeed.plugins.load.wiring import Wired, check_wired
from tokenspeed.plugins.words import counted

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.observer import Event

    from tokenspeed.plugins.plan import Planned, PluginPlan

log = logging.getLogger(__name__)

LOAD_SECONDS = 8.0
"""For the import of an observer and its factory; the server does not start before."""

CLOSE_SECONDS = 2.0
"""For all observers together, to take what is queued and to close."""

_CLOSE = "close"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_LAZY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


class Observers:
    """All observers of a server. Leaving the ``with`` block ends them.

    Attributes:
        token_ids: whether any of them needs the ids of generated tokens.
    """

    def __init__(self, deliveries: Sequence[Delivery], *, reading_ids: Sequence[Delivery]) -> None:
        """``reading_ids``: those whose manifests need token ids; the others get none."""
        self.token_ids = bool(reading_ids)
        self._deliveries = tuple(deliveries)
        self._reading_ids = frozenset(reading_ids)

    def observe(self, event: Event) -> None:
        """Tell those that have a hook for it. Never waits."""
        without_ids = event
        if self.token_ids and isinstance(event, TokensGenerated):
            without_ids = dataclasses.replace(event, token_ids=None)
        for delivery in self._deliveries:
            delivery.put(event if delivery in self._reading_ids else without_ids)

    def table(self) -> list[dict[str, Any]]:
        """A row of the start-up table for each."""
        return [
            {"observer": each.name, "owner": each.owner, "hooks": len(each.hooks)} for each in self
        ]

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._deliveries)

    def __enter__(self) -> Observers:
        return self

    def __exit__(self, *exception: object) -> None:
        deadline = time.monotonic() + CLOSE_SECONDS
        for delivery in self:
            delivery.end(deadline)
        for delivery in self:
            delivery.join(deadline)


@dataclass(frozen=True)
class ObserverCode:
    """What is called of an observer: its hooks by name, and its ``close`` if it has one."""

    hooks: Mapping[str, Callable[[Any], object]]
    close: Callable[[], object] | None


def read_observers(
    provisions: Iterable[Planned], needed: Callable[[Planned], bool] = lambda planned: False
) -> list[Active[ObserverCode]]:
    """Load and check observers, and start nothing.

    Args:
        needed: of which the error is raised; of the others it is kept.
    """
    read = _Manager().read
    return activate(provisions, lambda planned: _in_time(planned, read), needed)


def _in_time(planned: Planned, read: Callable[[Planned], ObserverCode]) -> ObserverCode:
    """What ``read`` makes of it, or raises; LoadError when that takes longer than LOAD_SECONDS."""
    answers: list[Callable[[], ObserverCode]] = []

    def work() -> None:
        try:
            code = read(planned)
            answers.append(lambda: code)
        except BaseException as error:
            answers.append(partial(_raise, error))

    thread = threading.Thread(target=work, name=f"load {planned.name}", daemon=True)
    thread.start()
    thread.join(LOAD_SECONDS)
    if not answers:
        raise LoadError(
            f'observer "{planned.name}" ({planned.value}) of {planned.owner} '
            f"did not load within {LOAD_SECONDS:g} s",
            where=f"its import, or its factory: entry point {planned.value}",
            fix=f"deny it: --deny observer={planned.name}, or {mend(planned.distribution)}",
        )
    return answers[0]()


def _raise(error: BaseException) -> NoReturn:
    raise error


def load_observers(plan: PluginPlan) -> Observers:
    """Load and check those of a plan, then start their threads.

    One that is broken is left out with a warning, unless the operator allowed it by name.

    Raises:
        LoadError: code of one that was named raised, or took too long.
        BrokenPromiseError: one that was named is no observer; the text names the method.
        NotWiredError: one has no hook.
    """
    found = read_observers(
        plan.of("observer"),
        needed=lambda planned: plan.lists.names("observer", planned.name, planned.plugin),
    )
    observers = {active.planned: active.value for active in found if active.value is not None}
    check_wired(
        observers,
        [Wired(each, len(o.hooks), counted(len(o.hooks), "hook")) for each, o in observers.items()],
    )
    deliveries = {
        planned: Delivery(planned.name, planned.owner, observer.hooks, observer.close)
        for planned, observer in observers.items()
    }
    reading_ids = [deliveries[planned] for planned in observers if TOKEN_IDS in planned.needs]
    return Observers(list(deliveries.values()), reading_ids=reading_ids)


class _Manager(pluggy.PluginManager):
    """Takes every public method of an observer for a hook, without decorators."""

    def __init__(self) -> None:
        super().__init__("tokenspeed")
        self.add_hookspecs(ObserverHooks)

    def parse_hookspec_opts(self, namespace: Any, name: str) -> Any:
        return {} if name in HOOKS else None

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        if name.startswith("_") or name == _CLOSE:
            return None
        method = inspect.getattr_static(plugin, name, None)
        inherited = method is vars(ObserverHooks).get(name)
        return {} if inspect.isroutine(method) and not inherited else None

    def read(self, planned: Planned) -> ObserverCode:
        """Load, check and register one. BrokenPromiseError says which of its methods is no hook."""
        log.info("loading observer %s of %s", planned.name, planned.owner)
        observer = call(planned)
        for name in dir(observer):
            if self.parse_hookimpl_opts(observer, name) is not None:
                _check(planned, name, observer)
            elif name in HOOKS and not inspect.isroutine(inspect.getattr_static(observer, name)):
                raise broken(planned, f"has an attribute {name}, a hook's name, that is no method")
        try:
            self.register(observer, planned.name)
        except (pluggy.PluginValidationError, ValueError) as error:
            raise broken(planned, f"has an observer that is refused: {error}") from error
        hooks = {
            caller.name: hook.function
            for caller in self.get_hookcallers(observer) or ()
            for hook in caller.get_hookimpls()
            if hook.plugin is observer
        }
        return ObserverCode(hooks, _close(planned, observer))


def _close(planned: Planned, observer: Any) -> Callable[[], object] | None:
    """What ends it, if it has one."""
    close = getattr(observer, _CLOSE, None)
    if close is None:
        return None
    if not callable(close):
        raise broken(planned, f"has a close that cannot be called: {close!r}")
    if any(lazy(close) for lazy in _LAZY):
        raise broken(planned, "has a close that is async or a generator: a call runs none")
    try:
        inspect.signature(close).bind()
    except TypeError as error:
        given = f"close{inspect.signature(close)}"
        raise broken(planned, f"has a {given}; it must be close()") from error
    return cast("Callable[[], object]", close)


def _check(planned: Planned, name: str, observer: Any) -> None:
    """What pluggy lets pass: unknown names, no argument at all, code that a call does not run."""
    method = getattr(observer, name)
    if name not in HOOKS:
        hint = did_you_mean(name, HOOKS)
        raise broken(planned, f'has a public method "{name}", which is no hook; {hint}')
    if any(lazy(method) for lazy in _LAZY):
        raise broken(planned, f"has a hook {name} that is async or a generator: a call runs none")
    if name in getattr(observer, "__dict__", ()):
        raise broken(planned, f"has a hook {name} that is no method of its class")
    parameters = [*inspect.signature(method).parameters.values()]
    if [p.name for p in parameters] != ["event"] or parameters[0].kind not in _POSITIONAL:
        given = f"{name}{inspect.signature(method)}"
        raise broken(planned, f"has a hook {given}; it must be {name}(event)")
