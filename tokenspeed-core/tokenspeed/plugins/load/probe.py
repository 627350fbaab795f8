# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Ask a platform whether this machine has its device, and do not wait for ever."""

from __future__ import annotations

import threading
from typing import Any

from tokenspeed_sdk.contracts.probe import Accept, Decline

from tokenspeed.plugins.choose.platforms import Probed
from tokenspeed.plugins.discover.origin import mend
from tokenspeed.plugins.errors import LoadError
from tokenspeed.plugins.load.activate import call, failed
from tokenspeed.plugins.plan import Planned

BUDGET = 5.0
"""Seconds for a platform's import and its probe; both should take milliseconds."""


WHERE = "its import and its probe"


def probe_platform(planned: Planned) -> Probed:
    """What it answers; a LoadError when its code raises or takes longer than BUDGET."""
    answers: list[Probed] = []
    thread = threading.Thread(
        target=lambda: answers.append(ask(planned)), name=f"probe {planned.name}", daemon=True
    )
    thread.start()
    thread.join(BUDGET)
    return answers[0] if answers else Probed(planned, False, too_slow(planned))


def ask(planned: Planned) -> Probed:
    """The same without a watch. What it raises is its failure, be it a KeyboardInterrupt."""
    try:
        platform = call(planned)
        embedded, outcome = bool(platform.embedded), platform.probe()
        _check(planned, platform, outcome)
    except LoadError as problem:
        return Probed(planned, False, problem)
    except BaseException as error:
        return Probed(planned, False, failed(planned, error))
    return Probed(planned, embedded, outcome)


def _check(planned: Planned, platform: Any, outcome: Any) -> None:
    """TypeError unless it is a platform and gave a verdict."""
    if platform.name != planned.name:
        raise TypeError(f"it calls itself {platform.name!r}")
    for method in ("prepare", "open"):
        if not callable(getattr(platform, method, None)):
            raise TypeError(f"it has no method {method}")
    if not isinstance(outcome, Accept | Decline):
        raise TypeError(f"its probe answers {outcome!r}, which is neither Accept nor Decline")
    if not isinstance(outcome.why, str):
        raise TypeError(f"its probe says why with {outcome.why!r}, which is no text")
    if isinstance(outcome, Accept) and type(outcome.score) is not int:
        raise TypeError(f"its probe answers score {outcome.score!r}, which is no integer")


def too_slow(planned: Planned) -> LoadError:
    """The error of one that took longer than BUDGET."""
    return LoadError(
        f"{told(planned)} did not answer within {BUDGET:g} s",
        where=WHERE,
        fix=f"deny it: --deny platform={planned.name}, or {mend(planned.distribution)}",
    )


def told(planned: Planned) -> str:
    """Whose probe it is, for people."""
    return f'platform "{planned.name}" ({planned.value}) of {planned.owner}'
