# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Why a request ends without an answer. Each text says what, with which numbers, and what to do."""

# ruff: noqa: N818 (named for what happened: that is what a caller catches)

from __future__ import annotations

MAX_TEXT = 600
"""Characters of an error: a library may repeat a whole grammar in its own. As a gRPC status it is a
header of up to 12 bytes a character, and some clients take no more than 8 KiB of them.
"""
_SHOWN = 80
_END = 200
"""Characters of the end of a text that is too long, which often says what it is all about."""


class Amount(str):
    """How many of what; shown as it is."""

    def __repr__(self) -> str:
        return str(self)


class RequestError(Exception):
    """One request failed; the server goes on."""

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) <= MAX_TEXT:
            return text
        return f"{text[: MAX_TEXT - _END - 5]} ... {text[-_END:]}"


class InvalidRequest(RequestError):
    """A field is out of range, or names something that is not built.

    Attributes:
        field: the parameter, as the API names it.
        value: what was given.
        allowed: the range, as a phrase that completes "must be".
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"{field} is {_shown(value)}, but must be {allowed}")


class UnhonouredConstraint(InvalidRequest):
    """No backend can keep to a constraint; why is all that a text needs."""

    def __init__(self, kind: str, text: str, reason: str) -> None:
        super().__init__(kind, text, "a constraint that can be honoured")
        self.args = (f"{kind} is {_shown(text)}: {reason}",)


class RejectedByScheduler(RequestError):
    """The request can never run here: it needs more than the engine has."""

    def __init__(self, reason: str, needed: int, available: int) -> None:
        super().__init__(
            f"the engine refused the request ({reason}): it needs {needed}, {available} available; "
            "shorten the prompt or max_tokens"
        )


class DuplicateRequest(RequestError):
    """A request with this id is running."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request_id {_shown(request_id)} is already running; use a new id")


class QueueFull(RequestError):
    """No place to wait."""

    def __init__(self, alive: int, wanted: int, running: int, waiting: int) -> None:
        super().__init__(
            f"the queue is full: {alive} sequences are alive and {wanted} more were asked for, but "
            f"{running} may run and {waiting} may wait (max_queue); try again later"
        )


class CompilerBusy(RequestError):
    """No place to wait for the grammar compiler."""

    def __init__(self, waiting: int) -> None:
        super().__init__(
            f"the grammar compiler is busy: {waiting} constraints wait for it; try again later"
        )


class CompilerFailed(RequestError):
    """The grammar compiler cannot work; no constraint is at fault."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the grammar compiler failed: {reason}; try again later")


class DeadlineExceeded(RequestError):
    """The request took longer than the server allows."""

    def __init__(self, seconds: float, *, by_engine: bool) -> None:
        who = "the engine stopped it" if by_engine else "the engine did not answer in time"
        super().__init__(f"the request did not end within {seconds:g} s (request_timeout); {who}")


class ShuttingDown(RequestError):
    """The server takes nothing new."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down; send it to another one, or later")


class CutOff(RequestError):
    """The server had taken the request, and shuts down."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(
            f"the server is shutting down and has waited {waited_s:.3g} s for this request; send "
            "it to another one, or later"
        )


class FailedInEngine(RequestError):
    """The engine could not compute this request."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the engine failed this request: {reason}")


class EngineGone(RequestError):
    """The engine process ended, and all requests with it."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"the engine is gone: {cause}")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python is willing to write
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
