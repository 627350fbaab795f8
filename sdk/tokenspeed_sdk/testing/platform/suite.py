# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The conformance suite of contract ``platform``: one line in a test file of the author.

from acme_npu.platform import AcmePlatform
from tokenspeed_sdk.testing import platform_conformance

test_platform = platform_conformance(AcmePlatform)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import pytest

from tokenspeed_sdk.contracts.probe import Decline
from tokenspeed_sdk.testing.platform import facts, graphs, memory, streams
from tokenspeed_sdk.testing.platform.subject import PlatformFactory, Subject

Check: TypeAlias = Callable[[Subject], None]
"""Takes the platform under test. AssertionError, or what the platform raised."""


def _by_name(*checks: Check) -> Mapping[str, Check]:
    return MappingProxyType({each.__name__.removeprefix("check_"): each for each in checks})


PLATFORM_CHECKS: Mapping[str, Check] = _by_name(
    facts.check_light,
    facts.check_names,
    facts.check_verdict,
)
"""What every platform must pass on every machine, by the name that pytest shows."""

DEVICE_CHECKS: Mapping[str, Check] = _by_name(
    facts.check_missing_index,
    facts.check_capabilities,
    memory.check_allocate,
    memory.check_zeroed,
    memory.check_too_much,
    memory.check_host_buffer,
    memory.check_memory,
    streams.check_at_once,
    streams.check_order,
    streams.check_events,
    streams.check_waits_without_gil,
    streams.check_errors,
    streams.check_two_streams,
    streams.check_close,
    graphs.check_capture,
)
"""What a platform must pass where its probe accepts."""


def platform_conformance(factory: PlatformFactory) -> Callable[..., None]:
    """A parametrised test of a platform and, where its probe accepts, of its device 0.

    Assign it to a name that starts with ``test_``. Each check is a test of its own:
    ``test_platform[allocate]``. Where the probe declines, those that need a device are skipped with
    its reason. The device is opened once, in the process of the tests.

    Args:
        factory: what the entry point in ``tokenspeed.platform`` names. A fresh process imports it
            by its module and name.
    """
    subject = Subject(factory)

    @pytest.mark.parametrize("check", [*PLATFORM_CHECKS, *DEVICE_CHECKS])
    def test(check: str) -> None:
        if check in PLATFORM_CHECKS:
            PLATFORM_CHECKS[check](subject)
            return
        verdict = subject.platform.probe()
        if isinstance(verdict, Decline):
            pytest.skip(f"platform {subject.platform.name} declines: {verdict.why}")
        DEVICE_CHECKS[check](subject)

    return test
