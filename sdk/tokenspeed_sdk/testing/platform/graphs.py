# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The check of graph capture."""

from __future__ import annotations

import torch

from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE
from tokenspeed_sdk.testing.platform.subject import Subject, raised_by, work_of

_SHAPE = (64,)


def check_capture(subject: Subject) -> None:
    """With GRAPH_CAPTURE graphs replay on their memory; without, ``capture`` refuses."""
    if GRAPH_CAPTURE in subject.device.capabilities.features:
        _check_replays(subject)
    else:
        _check_refused(subject)


def _check_refused(subject: Subject) -> None:
    with subject.stream() as stream:
        error = raised_by(lambda: subject.device.capture(lambda: None, stream))
    assert error is not None, f"capture works, but features lack {GRAPH_CAPTURE!r}"
    assert isinstance(error, RuntimeError), f"capture raises {error!r}, not a RuntimeError"
    assert str(error).strip(), f"capture raises {error!r}, without a text"


def _check_replays(subject: Subject) -> None:
    """Two graphs, replayed in turn on inputs that change in place, against the same arithmetic."""
    device, dtype = subject.device, subject.device.capabilities.dtypes[0]
    given, result = device.allocate(_SHAPE, dtype), device.allocate(_SHAPE, dtype)
    with subject.stream() as stream:
        double = device.capture(work_of(torch.mul, given, 2, out=result), stream)
        add = device.capture(work_of(result.add_, given), stream)
        for number in (3, 5):
            stream.run(work_of(given.fill_, number))
            stream.run(double.replay)
            stream.run(add.replay)
            stream.run(add.replay)
            found, expected = subject.read(stream, result), 4 * number
            assert bool((found == expected).all()), (
                f"graphs replayed on {number} give {found[0]}, not {expected}: they must run again "
                "on the memory that they were captured with"
            )
