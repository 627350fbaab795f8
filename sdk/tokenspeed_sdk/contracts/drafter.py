# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Contract ``drafter``: guesses what requests say next, for the model to verify.

An entry point in ``tokenspeed.drafter`` is a zero-argument callable that returns a DrafterBackend,
which guesses from text, or a DraftModelBackend, which guesses with a model of its own.

From text, on the host. Its module must be light: what is heavy is imported by ``open``.

    drafter = backend.open(limits)                # once in an engine
    drafter.begin(7, prompt, namespace=0)
    count = drafter.draft(request, most, tokens)  # every step, for the rows that decode
    drafter.advance(request, token_start, tokens) # what the model said to it, and more
    drafter.end(7)

With a model, on the device, inside the step that verifies:

    config = backend.read_config(its_config, target_config)
    head = backend.build(config, context, target, tensors)
    head.observe(batch, taps)                     # every step, behind the target's forward
    guesses = head.draft(rows, counts, most)      # in front of it, for the rows that are to guess

A guess costs time and never changes an answer: the model verifies every one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from tokenspeed_sdk.contracts.model import CacheGroup, TappedModel
    from tokenspeed_sdk.modeling.batch import ForwardBatch
    from tokenspeed_sdk.modeling.context import BuildContext
    from tokenspeed_sdk.modeling.weights import WeightMap


@dataclass(frozen=True)
class DrafterLimits:
    """What the engine will ask for at most.

    Attributes:
        max_requests: alive at once.
        max_model_len: tokens of one request, prompt and answer.
        most: tokens of one guess: the K of ``draft``.
        vocabulary: token ids are below it.
        pool_bytes: host memory for what may outlive requests; 0: nothing may.
    """

    max_requests: int
    max_model_len: int
    most: int
    vocabulary: int
    pool_bytes: int


class Drafter(Protocol):
    """Guesses what requests say next. Lives in the engine's loop: every call is short, none blocks.

    Used by one thread. Arrays are the caller's own: nothing of them is kept after a call.
    """

    def begin(self, request: int, prompt: NDArray[np.int32], *, namespace: int) -> None:
        """A request [0, 2^64) comes, with its prompt [tokens]. One that is there begins anew.

        Nothing that was learnt in one namespace [0, 2^64) may show in a guess of another: a
        namespace may be a tenant.
        """

    def advance(
        self, request: NDArray[np.uint64], token_start: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> None:
        """Tokens that were accepted: of request i those from token_start[i] to token_start[i + 1].

        Unknown requests are passed over.
        """

    def draft(
        self, request: NDArray[np.uint64], most: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Guesses for each request, at most most[i], into the first entries of row i of tokens.

        Deterministic in what was told: ranks that are told the same guess the same. What stands in
        the rest of a row is of no account.

        Args:
            request: [n]. Unknown ones get no guess.
            most: [n], 0 to K.
            tokens: [n, K], written in place.

        Returns:
            How many guesses each row has, int32 [n].
        """

    def end(self, request: int) -> None:
        """The request is over, however it ended; its memory is released. Unknown: nothing."""


class DrafterBackend(Protocol):
    """One way to guess from text. An engine uses one drafter."""

    @property
    def name(self) -> str:
        """As in the manifest."""

    def open(self, limits: DrafterLimits) -> Drafter:
        """Import what it needs and take its memory."""


class DraftModel(Protocol):
    """A built model that guesses for another, the target. Its calls launch and never wait, since
    steps are captured: nothing is read back from the device.

    What it keeps of a token lies in the target's own pages, behind the target's part, at the
    token's position: ``batch.caches`` are one view for each of its groups. So it may depend on that
    token and those before it, and on nothing else: whoever finds the page has the same ones.
    """

    def weight_map(self) -> WeightMap:
        """Which tensor of the drafter's checkpoint fills which part of which parameter."""

    def prepare(self) -> None:
        """Called once after loading. ValueError: what was loaded cannot be right."""

    def observe(self, batch: ForwardBatch, taps: tuple[torch.Tensor, ...]) -> None:
        """Tokens went through the target: keep what guesses will need of them.

        Every token comes here before one behind it is guessed for, a prompt in chunks of any size,
        guesses too; what stands in the pages behind a wrong guess is written again. A prompt whose
        first pages were found begins behind them.

        Args:
            batch: the step, with this drafter's caches.
            taps: of each layer that it asked for what it read, [tokens, hidden].
        """

    def draft(self, batch: ForwardBatch, counts: torch.Tensor, most: Sequence[int]) -> torch.Tensor:
        """Guess what follows the last token of some rows, which no ``observe`` has had yet.

        Row r may write at the positions of its token and of its first ``counts[r] - 1`` guesses,
        and nowhere else, also where ``most[r]`` is more; they are observed next. Rows do not depend
        on each other.

        Args:
            batch: decode rows, one token each, those with the most guesses first; ``max_kv_len`` is
                enough for all guesses.
            counts: int32 [rows] on the device, guesses of each row, at least 1.
            most: on the host, what each row has at most, falling; the launches depend on nothing
                else. While a step is captured it holds for every step that is to be replayed; else
                it is what ``counts`` says.

        Returns:
            [rows, at least most[0]] int64, each guess a token of the target's vocabulary. What
            stands behind a row's count is of no account.
        """


class DraftModelBackend(Protocol):
    """One kind of models that guess. The engine loads one from ``--drafter-model FOLDER``."""

    @property
    def name(self) -> str:
        """As in the manifest."""

    def read_config(self, config: Mapping[str, Any], target: Mapping[str, Any], /) -> Any:
        """The drafter's own config from its folder's config.json and the target's.

        ValueError names field and value, also where the two do not fit together.
        """

    def taps(self, config: Any, /) -> tuple[int, ...]:
        """Layers of the target whose input it reads; see ``TappedModel``."""

    def cache_groups(self, config: Any, /) -> tuple[CacheGroup, ...]:
        """What it keeps of a token, as keys and values of some shape."""

    def build(
        self, config: Any, context: BuildContext, target: TappedModel, tensors: Collection[str], /
    ) -> DraftModel:
        """Create the parameters and bind every kernel.

        Args:
            context: of the drafter: its ``role`` is "drafter".
            target: built, its weights not loaded yet; the drafter may call ``embed`` of it.
            tensors: names in the checkpoint, for what it may hold or share with the target.
        """
