# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The parent of one server: engine, front and gateway live and end together.

One thread, one selector: over what the children print, what they report, their ends, and our
signals. Must run in the main thread: the children die with the thread that started them.
"""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from tokenspeed.process import gateway
from tokenspeed.process.gateway import GatewayConfig
from tokenspeed.process.launch import ENGINE, FRONT, LaunchPlan
from tokenspeed.process.outlet import Outlet
from tokenspeed.process.spawn import Child, spawn

_STOP_GRACE = 5.0  # seconds that a child has to end once asked
_AFTERMATH = 0.3  # seconds in which children that die of the same cause are still heard
_READY_POLL = 0.05
_LAST_WORDS = 1.0  # seconds for somebody to read what the children printed last
_REMINDER = 30.0  # seconds after which a start that still goes on is said
_GATEWAY_PATIENCE = 60.0
_DRAIN_SLACK = 3.0  # seconds for the front to say that all has ended
_RESTARTS_S = 3600.0  # seconds in which restarts are counted


class ChildFailedError(Exception):
    """A child ended that should not have; ``str()`` is its root cause."""


class StopRequested(Exception):  # noqa: N818  # not an error: the operator wants to stop
    """SIGINT or SIGTERM arrived.

    Attributes:
        gently: whether it was SIGTERM, which gives open requests time to end.
    """

    def __init__(self, *, gently: bool) -> None:
        self.gently = gently


class Supervisor:
    """Starts children in order, watches them, ends them in reverse order.

    with supervised() as supervisor:
        supervisor.start("engine", ENGINE, plan)
        supervisor.watch(until=...)
    """

    def __init__(self, log_level: str = "warning") -> None:
        self.children: list[Child] = []
        self._log_level = log_level
        self._selector = selectors.DefaultSelector()
        self._signals = 0
        self._last_signal = signal.SIGINT
        self._outlet = Outlet()
        self._wakeup, self._wakeup_end = socket.socketpair()
        for end in (self._wakeup, self._wakeup_end):
            end.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def start(self, name: str, module: str, plan: bytes, *, quiet: bool = False) -> Child:
        """Start one more child; it is stopped before those that were started earlier.

        Args:
            quiet: keep its output back; it is still shown as the tail when the child fails.
        """
        child = self._spawn(name, module, plan)
        child.quiet = quiet
        self.children.append(child)
        return child

    def restart(self, modules: Mapping[str, str], plan: bytes) -> None:
        """End the children of these names and start them anew, in their old places.

        Args:
            modules: of each name, which child runs.
        """
        places = [i for i, child in enumerate(self.children) if child.name in modules]
        asked = self._signals
        for i in reversed(places):
            self._end(self.children[i], asked)
        for i in places:
            self.children[i].stop()
            name = self.children[i].name
            self.children[i] = self._spawn(name, modules[name], plan)

    def _spawn(self, name: str, module: str, plan: bytes) -> Child:
        child = spawn(name, module, plan, log_level=self._log_level, capture=True)
        child.outlet = self._outlet.write
        for fd in (child.status_fd, child.output_fd, child.pidfd):
            assert fd is not None
            self._selector.register(fd, selectors.EVENT_READ)
        return child

    def watch(self, until: Callable[[], bool], poll: float | None = None) -> None:
        """Serve the children until a condition holds, which is asked after each happening.

        Args:
            poll: seconds after which the condition is asked even if nothing happened.

        Raises:
            ChildFailedError: a child ended.
            StopRequested: the operator wants to stop.
        """
        while not until():
            self._listen(poll)
            if self._signals:
                raise StopRequested(gently=self._last_signal == signal.SIGTERM)
            if any(child.failure() is not None for child in self.children):
                raise ChildFailedError(self._root_cause())

    def watch_start(self, last: Child) -> None:
        """Watch until the last of the children is ready; say now and then what they all do."""
        due = time.monotonic() + _REMINDER

        def is_ready() -> bool:
            nonlocal due
            if last.ready is None and time.monotonic() >= due:
                due += _REMINDER
                doing = "; ".join(f"{child.name}: {child.doing()}" for child in self.children)
                self.say(f"still starting: {doing}")
            return last.ready is not None

        self.watch(until=is_ready, poll=_REMINDER)

    def say(self, text: str) -> None:
        """A line between those that the children print."""
        self._outlet.write(f"{text}\n".encode())

    def child(self, name: str) -> Child:
        return next(child for child in self.children if child.name == name)

    def drain(self, front: Child, seconds: float) -> None:
        """Let the front's requests end, nothing new is taken; a further signal cuts them off, and
        one more does not wait for that either.

        Args:
            seconds: after which nothing is waited for, whatever the front says.
        """
        for patience in (seconds, _DRAIN_SLACK):
            asked = self._signals
            front.drain()
            self._await_drained(front, patience, asked)
            if self._signals == asked:
                return

    def _await_drained(self, front: Child, seconds: float, asked: int) -> None:
        """So long at most, and while there were no more than so many signals."""
        deadline = time.monotonic() + seconds
        while not (front.drained or front.ended() or self._signals > asked):
            if (left := deadline - time.monotonic()) <= 0:
                return
            self._listen(left)

    def stop(self) -> None:
        """End the children, last started first; a further signal ends them at once."""
        asked = self._signals
        for child in reversed(self.children):
            self._end(child, asked)
        for child in self.children:
            child.stop()
        self._outlet.flush(_LAST_WORDS)
        self._selector.close()
        self._wakeup.close()
        self._wakeup_end.close()

    def _end(self, child: Child, asked: int) -> None:
        """Ask it to end, and insist after a while, or with more than so many signals."""
        child.terminate()
        deadline = time.monotonic() + _STOP_GRACE
        while not child.ended():
            if self._signals > asked or time.monotonic() > deadline:
                child.kill()
            self._listen(0.1)
        self._listen(0)

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """Count SIGINT and SIGTERM instead of dying of them."""

        def count(signum: int, frame: object) -> None:
            self._signals += 1
            self._last_signal = signal.Signals(signum)

        old = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)}
        old_fd = signal.set_wakeup_fd(self._wakeup_end.fileno())
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in old.items():
                signal.signal(number, handler)

    def _listen(self, timeout: float | None) -> None:
        """Wait until something happens and take it in."""
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._wakeup:
                self._wakeup.recv(4096)
        for child in self.children:
            child.read_status()
            child.pump_output()
            if child.ended():
                self._forget(child)

    def _forget(self, child: Child) -> None:
        """No longer listen to an ended child: its descriptors would be readable for ever. Those
        that stand on it hear why it ended, so that they can say it to whom they serve."""
        heard = self._selector.get_map()
        if child.pidfd < 0 or child.pidfd not in heard:
            return
        for fd in (child.status_fd, child.output_fd, child.pidfd):
            if fd is not None and fd in heard:
                self._selector.unregister(fd)
        if (why := child.failure()) and not child.ended_in_order():
            for other in self.children[self.children.index(child) + 1 :]:
                other.tell(why.partition("\n")[0])

    def _root_cause(self) -> str:
        """The text of the failure that the others follow from.

        Several may have died by now. An error, or an end that nobody asked for, outweighs an
        orderly end, and who was started earlier outweighs who stands on it.
        """
        deadline = time.monotonic() + _AFTERMATH
        while (left := deadline - time.monotonic()) > 0:
            self._listen(left)
        failures = [(child, text) for child in self.children if (text := child.failure())]
        child, text = min(failures, key=lambda failure: failure[0].ended_in_order())
        return f"{child.name} failed: {text}"


@contextmanager
def supervised(log_level: str = "warning") -> Iterator[Supervisor]:
    """A supervisor whose children are stopped in order when the block is left."""
    supervisor = Supervisor(log_level)
    with supervisor.catch_signals():
        try:
            yield supervisor
        finally:
            supervisor.stop()


def serve(
    plan: LaunchPlan,
    http: GatewayConfig,
    announce: Callable[[dict[str, Any]], None],
    log_level: str = "warning",
    *,
    restarts: int = 0,
) -> None:
    """Run a server until the operator stops it. ChildFailedError when it ended otherwise.

    Args:
        announce: called with the front's "ready" event once requests are served.
        restarts: how often within an hour engine and front are started anew when one has died.
    """
    drain_s = plan.front.drain_timeout
    with suppress(StopRequested), serving(plan, http, log_level) as (supervisor, ready):
        announce(ready)
        try:
            _keep_serving(supervisor, _with_ports(plan, ready), restarts)
        except StopRequested as stop:
            if stop.gently:
                supervisor.say(f"shutting down: open requests have {drain_s:g} s to end")
                supervisor.drain(supervisor.child("front"), drain_s + _DRAIN_SLACK)


def _keep_serving(supervisor: Supervisor, plan: LaunchPlan, restarts: int) -> None:
    """Watch for ever; start engine and front anew where the policy allows it.

    The gateway lives on, and answers 503 until there is a front again.
    """
    starts: deque[float] = deque()
    while True:
        try:
            supervisor.watch(until=lambda: False)
        except ChildFailedError as error:
            now = time.monotonic()
            while starts and now - starts[0] > _RESTARTS_S:
                starts.popleft()
            if len(starts) >= restarts or supervisor.child("gateway").failure() is not None:
                raise
            starts.append(now)
            supervisor.say(f"{error}\nrestart {len(starts)} of {restarts}: engine and front")
        supervisor.restart({"engine": ENGINE, "front": FRONT}, msgspec.json.encode(plan))
        supervisor.watch_start(supervisor.child("front"))
        supervisor.say("serving again")


def _with_ports(plan: LaunchPlan, ready: dict[str, Any]) -> LaunchPlan:
    """So that the front of a restart is found where the first one was."""
    ports = {name: ready[name] for name in ("grpc_port", "admin_port")}
    return msgspec.structs.replace(plan, front=msgspec.structs.replace(plan.front, **ports))


@contextmanager
def serving(
    plan: LaunchPlan, http: GatewayConfig, log_level: str = "warning", *, quiet: bool = False
) -> Iterator[tuple[Supervisor, dict[str, Any]]]:
    """A server for the length of the block, which must watch it, and the front's "ready" event.

    Args:
        quiet: keep what the gateway prints of each request that it refuses.

    Raises:
        ChildFailedError: a child ended.
        StopRequested: the operator wants to stop.
    """
    encoded = msgspec.json.encode(plan)
    with supervised(log_level) as supervisor:
        supervisor.start("engine", ENGINE, encoded)
        front = supervisor.start("front", FRONT, encoded)
        supervisor.watch_start(front)
        assert front.ready is not None
        arguments = gateway.gateway_arguments(http, front.ready["grpc_port"])
        door = supervisor.start(
            "gateway", gateway.MODULE, msgspec.json.encode(arguments), quiet=True
        )
        _await_gateway(supervisor, door, http)
        door.quiet = quiet
        yield supervisor, front.ready


def _await_gateway(supervisor: Supervisor, door: Child, http: GatewayConfig) -> None:
    """Until it serves. It lives on, not ready, when it cannot use the front or the tokenizer."""
    deadline = time.monotonic() + _GATEWAY_PATIENCE

    def serves() -> bool:
        if time.monotonic() > deadline:
            lines = [f"gateway failed: not ready after {_GATEWAY_PATIENCE:.0f} s", *door.tail()]
            raise ChildFailedError("\n".join(lines))
        return gateway.is_ready(http)

    supervisor.watch(until=serves, poll=_READY_POLL)
