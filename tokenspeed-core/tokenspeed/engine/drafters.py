# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The drafter that an operator asked for: the engine's own, or one of a plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed_sdk.contracts.drafter import DrafterLimits

from tokenspeed._drafts import SuffixDrafter
from tokenspeed.registry.drafters import read_drafter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed_sdk.contracts.drafter import Drafter

    from tokenspeed.config import EngineConfig
    from tokenspeed.plugins.plan import Planned

SUFFIX = "suffix"
POOL_BYTES = 64 << 20
"""Of what ended requests said: about 3 million tokens."""


def check_drafter(config: EngineConfig, installed: Sequence[Planned]) -> None:
    """Before minutes of loading: whether there is the drafter that a config names.

    ValueError: there is none.
    """
    name = config.drafter
    if name is None:
        return
    names = [SUFFIX, *sorted(planned.name for planned in installed)]
    if name not in names:
        raise ValueError(f"--drafter {name} is not installed; there are: {', '.join(names)}")


def open_drafter(
    config: EngineConfig, installed: Sequence[Planned], *, max_model_len: int, vocab_size: int
) -> Drafter | None:
    """The drafter of a config, which was checked; None: nothing is to be guessed.

    Args:
        installed: drafters of plugins.

    Raises:
        LoadError, BrokenPromiseError: it is a plugin's, and that one is at fault.
    """
    if config.drafter is None:
        return None
    for planned in installed:
        if planned.name == config.drafter:
            limits = DrafterLimits(
                max_requests=config.max_num_seqs,
                max_model_len=max_model_len,
                most=config.draft_tokens,
                vocabulary=vocab_size,
                pool_bytes=POOL_BYTES,
            )
            return read_drafter(planned).open(limits)
    return SuffixDrafter(max_model_len=max_model_len, pool_bytes=POOL_BYTES)
