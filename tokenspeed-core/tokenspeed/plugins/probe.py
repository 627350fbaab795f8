# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Ask a platform whether this machine has its device, and do not wait for ever."""

from __future__ import annotations

import threading

from tokenspeed_sdk.contracts.probe import Accept, Decline

from tokenspeed.plugins.activate import PLUGIN_RAISES, call, failed
from tokenspeed.plugins.errors import LoadError
from tokenspeed.plugins.plan import Planned
from tokenspeed.plugins.platforms import Probed

BUDGET = 5.0
"""Seconds for a platform's import and its probe; both should take milliseconds."""


def probe_platform(planned: Planned) -> Probed:
    """What it answers; a LoadError when its code raises or takes longer than BUDGET."""
    answers: list[Probed] = []
    thread = threading.Thread(
        target=lambda: answers.append(_ask(planned)), name=f"probe {planned.name}", daemon=True
    )
    thread.start()
    thread.join(BUDGET)
    return answers[0] if answers else Probed(planned, False, _too_slow(planned))


def _ask(planned: Planned) -> Probed:
    try:
        platform = call(planned)
        try:
            embedded, outcome = bool(platform.embedded), platform.probe()
            if platform.name != planned.name or not isinstance(outcome, Accept | Decline):
                raise TypeError(f"it calls itself {platform.name!r} and answers {outcome!r}")
        except PLUGIN_RAISES as error:
            raise failed(planned, error) from error
    except LoadError as problem:
        return Probed(planned, False, problem)
    return Probed(planned, embedded, outcome)


def _too_slow(planned: Planned) -> LoadError:
    return LoadError(
        f'platform "{planned.name}" ({planned.value}) of {planned.owner} '
        f"did not answer within {BUDGET:g} s",
        where="its import and its probe",
        fix=f"deny it: --deny platform={planned.name}, or report it to the authors of "
        f"{planned.distribution}",
    )
