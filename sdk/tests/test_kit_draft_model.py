# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The kit finds faults of drafters with a model, and lets a sound one pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest
import torch
from tokenspeed_sdk.contracts.model import CacheGroup, TappedModel
from tokenspeed_sdk.modeling import BuildContext, CacheView, ForwardBatch, WeightMap
from tokenspeed_sdk.testing.drafter.model_suite import CHECKS
from tokenspeed_sdk.testing.drafter.played_target import DraftRunner

pytestmark = pytest.mark.rule("R19")

HIDDEN, VOCAB = 6, 31
TARGET = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 4}


class Recurrent:
    """A recurrent cell: sound. Its state after a token follows from the state before, the token,
    and what a layer read of the token before; both are kept, a key and a value.

    Both of its halves are methods that a faulty one replaces.
    """

    name = "recurrent"

    def read_config(self, config: Mapping[str, Any], target: Mapping[str, Any], /) -> None:
        assert target == TARGET

    def taps(self, config: None, /) -> tuple[int, ...]:
        return (2,)

    def cache_groups(self, config: None, /) -> tuple[CacheGroup, ...]:
        return (CacheGroup("full", (0,), 1, HIDDEN),)

    def build(
        self, config: None, context: BuildContext, target: TappedModel, tensors: Collection[str], /
    ) -> Recurrent:
        self._page_size = context.page_size
        self._embed = target.embed
        dtype = getattr(torch, context.dtype)
        self.cell = torch.empty(HIDDEN, 3 * HIDDEN, dtype=dtype)
        self.head = torch.empty(VOCAB, HIDDEN, dtype=dtype)
        return self

    def weight_map(self) -> WeightMap:
        weights = WeightMap()
        weights.add("cell", self.cell)
        weights.add("head", self.head)
        return weights

    def prepare(self) -> None:
        pass

    def observe(self, batch: ForwardBatch, taps: tuple[torch.Tensor, ...]) -> None:
        (cache,) = batch.caches
        starts = batch.query_start.tolist()
        for row, slot in enumerate(batch.row_slot.tolist()):
            for at in range(starts[row], starts[row + 1]):
                position = int(batch.positions[at])
                state = self.step(*self.before(cache, slot, position), batch.token_ids[at])
                self.keep(cache, slot, position, state, taps[0][at])

    def draft(self, batch: ForwardBatch, counts: Sequence[int]) -> torch.Tensor:
        guesses = torch.zeros(len(counts), max(counts), dtype=torch.int64)
        for row, slot in enumerate(batch.row_slot.tolist()):
            token = batch.token_ids[row]
            state, read = self.before(batch.caches[0], slot, int(batch.positions[row]))
            for place in range(counts[row]):
                state = read = self.step(state, read, token)
                guesses[row, place] = token = (self.head @ state).argmax()
        return guesses

    def step(self, state: torch.Tensor, read: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        pair = torch.cat((state, read, self._embed(token[None])[0]))
        return torch.tanh(self.cell @ pair)

    def before(
        self, cache: CacheView, slot: int, position: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """State and tap of the token before a position."""
        if position == 0:
            zeros = torch.zeros(HIDDEN, dtype=self.cell.dtype)
            return zeros, zeros
        page, offset = self.place(cache, slot, position - 1)
        return cache.keys[0][page, 0, offset], cache.values[0][page, 0, offset]

    def keep(
        self, cache: CacheView, slot: int, position: int, state: torch.Tensor, read: torch.Tensor
    ) -> None:
        page, offset = self.place(cache, slot, position)
        cache.keys[0][page, 0, offset] = state
        cache.values[0][page, 0, offset] = read

    def place(self, cache: CacheView, slot: int, position: int) -> tuple[int, int]:
        size = self._page_size
        return int(cache.page_table[slot, position // size]), position % size


def run(check: str, backend: Callable[[], Any]) -> None:
    CHECKS[check](lambda: DraftRunner(backend(), {}, TARGET), VOCAB)


@pytest.mark.parametrize("check", CHECKS)
def test_a_sound_one_passes(check: str) -> None:
    run(check, Recurrent)


class Constant(Recurrent):
    def step(self, state: Any, read: Any, token: Any) -> Any:
        return torch.ones(HIDDEN, dtype=self.cell.dtype)


class NoTokens(Recurrent):
    def draft(self, batch: Any, counts: Any) -> Any:
        return super().draft(batch, counts) + VOCAB


class Small(Recurrent):
    def draft(self, batch: Any, counts: Any) -> Any:
        return super().draft(batch, counts).to(torch.int32)


class Few(Recurrent):
    def draft(self, batch: Any, counts: Any) -> Any:
        return super().draft(batch, counts)[:, :1]


class Dicing(Recurrent):
    def step(self, state: Any, read: Any, token: Any) -> Any:
        return torch.rand(HIDDEN, dtype=self.cell.dtype)


class Remembering(Recurrent):
    """Guessing leaves a trace where nothing is observed again."""

    def draft(self, batch: Any, counts: Any) -> Any:
        guesses = super().draft(batch, counts)
        for row, slot in enumerate(batch.row_slot.tolist()):
            place = self.place(batch.caches[0], slot, int(batch.positions[row]) - 1)
            batch.caches[0].keys[0][place[0], 0, place[1]] = 1.0
        return guesses


class FirstRow(Recurrent):
    def draft(self, batch: Any, counts: Any) -> Any:
        return super().draft(batch, counts)[:1].expand(len(counts), -1)


class Forgetful(Recurrent):
    """Begins anew with every chunk."""

    def observe(self, batch: Any, taps: Any) -> None:
        self._first = set(batch.positions[batch.query_start[:-1].long()].tolist())
        super().observe(batch, taps)

    def before(self, cache: Any, slot: int, position: int) -> Any:
        first = position in getattr(self, "_first", ())
        return super().before(cache, slot, 0 if first else position)


class Early(Recurrent):
    """Keeps a pair at the position of what was read, as if that had come with its token."""

    def keep(self, cache: Any, slot: int, position: int, state: Any, read: Any) -> None:
        super().keep(cache, slot, max(position - 1, 0), state, read)

    def before(self, cache: Any, slot: int, position: int) -> Any:
        return super().before(cache, slot, position - 1 if position > 1 else position)


class OnTheSide(Recurrent):
    """Keeps its states by slot, in memory of its own."""

    def build(self, *args: Any) -> Any:
        self._kept: dict[tuple[int, int], Any] = {}
        return super().build(*args)

    def keep(self, cache: Any, slot: int, position: int, state: Any, read: Any) -> None:
        self._kept[slot, position] = state, read

    def before(self, cache: Any, slot: int, position: int) -> Any:
        if (slot, position - 1) in self._kept:
            return self._kept[slot, position - 1]
        return super().before(cache, slot, 0)


class Stubborn(Recurrent):
    """What it has of a slot and a position it never makes again."""

    def build(self, *args: Any) -> Any:
        self._had: set[tuple[int, int]] = set()
        return super().build(*args)

    def keep(self, cache: Any, slot: int, position: int, state: Any, read: Any) -> None:
        if (slot, position) not in self._had:
            super().keep(cache, slot, position, state, read)
        self._had.add((slot, position))


class Wide(Recurrent):
    """Writes behind its guesses."""

    def draft(self, batch: Any, counts: Any) -> Any:
        place = self.place(batch.caches[0], int(batch.row_slot[0]), int(batch.positions[0]))
        batch.caches[0].keys[0][place[0], 0, (place[1] + counts[0]) % self._page_size] = 9.0
        return super().draft(batch, counts)


FAULTS = [
    ("guesses", Constant, "it guesses the same, whatever was said"),
    ("guesses", NoTokens, "which is no token of the target"),
    ("guesses", Small, "guesses are torch.int32, not int64"),
    ("rows", Few, "1 guesses, not 4"),
    ("deterministic", Dicing, "asked again, it guesses something else"),
    ("deterministic", Remembering, "asked again, it guesses something else"),
    ("rows", FirstRow, "beside others, a row's guesses are not those it has alone"),
    ("chunks", Forgetful, "it guesses else"),
    ("untouched", Early, "it writes where it must not"),
    ("found_pages", OnTheSide, "behind pages that were found, it guesses something else"),
    ("wrong_guesses", Stubborn, "the text that went on is guessed for otherwise"),
    ("reused_slots", Stubborn, "a slot's next tenant is guessed for otherwise"),
    ("untouched", Wide, "it writes where it must not"),
]


@pytest.mark.parametrize(("check", "drafter", "message"), FAULTS)
def test_faults_are_found(check: str, drafter: type[Recurrent], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run(check, drafter)
