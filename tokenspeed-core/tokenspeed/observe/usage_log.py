# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A line of the log for each request that ended: what it used, and what it was spared."""

from __future__ import annotations

import logging

from tokenspeed_sdk.contracts.observer import Event, RequestFinished

log = logging.getLogger(__name__)


def log_usage(event: Event) -> None:
    """Log it, at level info, if it is the end of a request."""
    if not isinstance(event, RequestFinished):
        return
    log.info(
        "request %d %s: %s after %.3f s, %d prompt tokens (%d cached), %d output tokens, "
        "%d of %d guesses right",
        event.request,
        event.request_id,
        event.outcome,
        event.seconds,
        event.prompt_tokens,
        event.cached_tokens,
        event.output_tokens,
        event.accepted_tokens,
        event.drafted_tokens,
    )
