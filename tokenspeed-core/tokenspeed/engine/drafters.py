# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The drafter that an operator asked for: the engine's own, or one of a plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from tokenspeed_sdk.contracts.drafter import DrafterLimits

from tokenspeed._drafts import SuffixDrafter
from tokenspeed.plugins.choose.drafters import SUFFIX, check_model, find_drafter
from tokenspeed.registry.drafters import read_drafter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from tokenspeed_sdk.contracts.drafter import Drafter, DrafterBackend, DraftModelBackend
    from typing_extensions import TypeIs

    from tokenspeed.config import EngineConfig
    from tokenspeed.plugins.plan import Planned

    Backend: TypeAlias = DrafterBackend | DraftModelBackend

POOL_BYTES = 64 << 20
"""Of what ended requests said: about 3 million tokens."""


class Suffix:
    """The engine's own drafter."""

    name = SUFFIX

    def open(self, limits: DrafterLimits) -> Drafter:
        return SuffixDrafter(max_model_len=limits.max_model_len, pool_bytes=limits.pool_bytes)


class GuessedInStep:
    """What the loop sees of a drafter with a model: how many guesses there will be. Which ones, is
    found within the step; until then zeros stand for them."""

    def begin(self, request: int, prompt: NDArray[np.int32], *, namespace: int) -> None:
        """It keeps what it knows in pages, which namespaces part."""

    def advance(
        self, request: NDArray[np.uint64], token_start: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> None:
        """The step has had them."""

    def draft(
        self, request: NDArray[np.uint64], most: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """As many as are asked for."""
        tokens[:] = 0
        return most.copy()

    def end(self, request: int) -> None:
        """Its pages go with it."""


def choose_drafter(config: EngineConfig, installed: Sequence[Planned]) -> Backend | None:
    """The drafter that a config names, before minutes of loading; None: nothing is to be guessed.

    Args:
        installed: drafters of plugins.

    Raises:
        UnknownNameError: there is none of that name; the launch has looked before.
        DrafterModelError: the folder of a model is given where there is none, or missing where
            there is one.
        LoadError, BrokenPromiseError: it is a plugin's, and that one is at fault.
    """
    if config.drafter is None:
        return None
    planned = find_drafter(config.drafter, installed)
    backend: Backend = Suffix() if planned is None else read_drafter(planned)
    check_model(backend.name, config.drafter_model, has_model=guesses_with_model(backend))
    return backend


def check_drafter(config: EngineConfig, installed: Sequence[Planned]) -> None:
    """Raise as ``choose_drafter``, as far as can be told before anything is started.

    A plugin's drafter is loaded only where no folder is given: one with a model, which may import
    much, then ends the launch. What else it has to say of a folder, the engine hears.
    """
    if config.drafter is None:
        return
    planned, folder = find_drafter(config.drafter, installed), config.drafter_model
    if planned is None or folder is None:
        choose_drafter(config, installed)
    else:
        check_model(planned.name, folder, has_model=True)


def guesses_with_model(backend: Backend | None) -> TypeIs[DraftModelBackend]:
    """Whether it is of the kind that guesses on the device."""
    return hasattr(backend, "build")


def open_drafter(
    backend: Backend | None, config: EngineConfig, *, max_model_len: int, vocab_size: int
) -> Drafter | None:
    """What the loop asks for guesses; None: nothing is to be guessed."""
    if backend is None:
        return None
    if guesses_with_model(backend):
        return GuessedInStep()
    limits = DrafterLimits(
        max_requests=config.max_num_seqs,
        max_model_len=max_model_len,
        most=config.draft_tokens,
        vocabulary=vocab_size,
        pool_bytes=POOL_BYTES,
    )
    return backend.open(limits)
