# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The drafter that an operator asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE

from tokenspeed._drafts import SuffixDrafter

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.drafter import Drafter
    from tokenspeed_sdk.contracts.platform import Device

    from tokenspeed.config import EngineConfig

SUFFIX = "suffix"
POOL_BYTES = 64 << 20
"""Of what ended requests said: about 3 million tokens."""


def open_drafter(config: EngineConfig, device: Device, max_model_len: int) -> Drafter | None:
    """The drafter of a config; None: nothing is to be guessed.

    ValueError: there is none of its name, or steps of this device cannot verify guesses.
    """
    if config.drafter is None:
        return None
    if config.drafter != SUFFIX:
        raise ValueError(f'--drafter {config.drafter!r} is not known; there is "{SUFFIX}"')
    if config.graphs and GRAPH_CAPTURE in device.capabilities.features:
        raise ValueError(
            f"--drafter {config.drafter} is not for this device: its decode steps are captured, and "
            f"those that verify guesses cannot be yet; leave it out, or give --no-graphs"
        )
    return SuffixDrafter(max_model_len=max_model_len, pool_bytes=POOL_BYTES)
