# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A pytest plugin for tests of plugins. In a conftest.py:

pytest_plugins = ["tokenspeed_sdk.testing.plugin"]

Tests then see no installed plugin, in this process and in those that they start: what they find
must not depend on the machine. ``@pytest.mark.installed_plugins`` lets a test or a module see them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from tokenspeed_sdk.testing.platform.fakes import NO_DEVICE, FakePlatform

ALLOW = "TOKENSPEED_ALLOW"
"""Environment variable with the plugins that the engine may use; "none" is none."""

MARKER = "installed_plugins: sees the plugins that are installed; others see none"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, for --strict-markers."""
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """No installed plugin for a test and all its fixtures, of any scope, unless it is marked."""
    with pytest.MonkeyPatch.context() as environment:
        if item.get_closest_marker("installed_plugins") is None:
            environment.setenv(ALLOW, "none")
        return (yield)


@pytest.fixture
def fake_platform() -> Callable[..., FakePlatform]:
    """Makes platforms without hardware: ``fake_platform("acme", H100)``."""
    return FakePlatform


@pytest.fixture
def missing_platform() -> FakePlatform:
    """A platform whose probe declines, since its device is not there."""
    return FakePlatform("missing", verdict=NO_DEVICE)
