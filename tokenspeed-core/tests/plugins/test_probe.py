# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A platform that does not answer in time does not hold up the others."""

from __future__ import annotations

import time

import pytest
from tokenspeed.plugins import probe
from tokenspeed.plugins.errors import LoadError
from tokenspeed.plugins.host import resolve_installed
from tokenspeed.plugins.lists import gather

pytestmark = [pytest.mark.rule("R5"), pytest.mark.rule("R6")]

SLEEP = "import time\ntime.sleep(20)\n"


@pytest.fixture(autouse=True)
def _budget(monkeypatch):
    assert probe.BUDGET == 5.0
    monkeypatch.setattr(probe, "BUDGET", 0.3)


@pytest.mark.parametrize("where", ["import", "probe"])
def test_a_slow_platform_beside_another_is_a_warning(site, where):
    site.platform("acme-gpu", "acme")
    if where == "import":
        site.platform("slow-gpu", "slow", prefix=SLEEP)
    else:
        site.platform("slow-gpu", "slow", verdict="__import__('time').sleep(20)")
    started = time.monotonic()
    resolution = resolve_installed()
    assert time.monotonic() - started < 5
    assert resolution.plan.platform == "acme"
    (warning,) = resolution.warnings
    assert 'platform "slow" (slow_gpu:make) of slow-gpu 1.0 did not answer within 0.3 s' in warning
    assert "deny it: --deny platform=slow" in warning


def test_a_slow_platform_that_may_be_the_only_one_is_fatal(site):
    site.platform("small", "cpu", embedded=True)
    site.platform("slow-gpu", "slow", prefix=SLEEP)
    with pytest.raises(LoadError, match="did not answer") as caught:
        resolve_installed()
    assert "--platform cpu" in caught.value.fix
    lists = gather(deny=["platform=slow"])
    assert resolve_installed(lists=lists).plan.platform == "cpu"
