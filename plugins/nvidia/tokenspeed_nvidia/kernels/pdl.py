# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Programmatic dependent launch: a kernel starts while the one before it still runs.

CUDA programming guide, "Programmatic Dependent Launch and Synchronization". A kernel launched with
``options(pdl)`` may begin early, so its body follows one rule:

    ...                        # load weights and other constants: nobody writes them
    wait_for_inputs(PDL)       # everything before this kernel is complete and visible
    ...                        # only now touch what an earlier kernel writes or still reads
    start_dependents(PDL)      # the next kernel may begin, too
    ...                        # compute and store

Every kernel launched this way waits, so what lies two kernels back is complete as well. The gain is
what happens before the wait: weights travel while a small kernel in front still computes.

Dependents start behind a kernel's last loads. Earlier they would take its memory bandwidth and its
room: on an H200, a small kernel that waits for a chain of loads became slower by more than its
successor gained. A product of one row, whose loads are all under way at once, lets them go first.
"""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

ARCHS = ("sm_90", "sm_100", "sm_103", "sm_120")
"""Those that have the instructions."""


@triton.jit
def start_dependents(PDL: tl.constexpr):
    """Let the next kernel begin once every program of this one came here or ended."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Wait for the kernels before this one."""
    if PDL:
        gdc_wait()


def has_pdl(site: CallSite) -> bool:
    """Whether kernels of a site are launched this way; Triton's interpreter knows nothing of it."""
    return site.device.arch in ARCHS and not triton.knobs.runtime.interpret


def options(pdl: bool) -> dict[str, Any]:
    """What a launch takes besides ``PDL=pdl``; other backends do not know the option."""
    return {"launch_pdl": True} if pdl else {}
