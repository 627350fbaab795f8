# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Page copies of a step: behind what was queued before, in front of the forward, eager or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from copies import check_copies
from harness import engine
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.testing.platform.devices import ReplayingDevice


@pytest.mark.parametrize("device", ["delaying", "replaying"])
def test_a_page_is_copied_and_then_written(
    tiny_llama: Path, request: pytest.FixtureRequest, device: str
) -> None:
    chosen: Device = request.getfixturevalue(device)
    with engine(tiny_llama, chosen) as built:
        check_copies(built.executor)
    if isinstance(chosen, ReplayingDevice):
        assert sum(chosen.replays) == 1
