# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A line of the log for each request that ended: what it used, what it was spared, and why it has
no answer."""

from __future__ import annotations

import logging

from tokenspeed_sdk.contracts.observer import Event, RequestFinished

log = logging.getLogger(__name__)

MAX_REASON = 240
"""Characters of what the client was told."""


def log_usage(event: Event) -> None:
    """Log it, at level info, if it is the end of a request."""
    if not isinstance(event, RequestFinished):
        return
    log.info(
        "request %d %s: %s after %.3f s, %d prompt tokens (%d cached), %d output tokens, "
        "%d of %d guesses right%s",
        event.request,
        event.request_id,
        event.outcome,
        event.seconds,
        event.started_prompt_tokens or event.prompt_tokens,
        event.cached_tokens,
        event.output_tokens,
        event.accepted_tokens,
        event.drafted_tokens,
        "" if event.error is None else f"; told: {_line(event.error)}",
    )


def _line(text: str) -> str:
    """One line, which nothing in the text can break, of bounded length."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[: MAX_REASON + 1])
    return line if len(line) <= MAX_REASON else f"{line[:MAX_REASON]}..."
