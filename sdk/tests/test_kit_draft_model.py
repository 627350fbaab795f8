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
        for at in range(len(batch.token_ids)):  # each follows from the one before
            one = slice(at, at + 1)
            place = batch.token_slot[one], batch.positions[one]
            state = self.step(*self.before(batch.caches[0], *place), batch.token_ids[one])
            self.keep(batch.caches[0], *place, state, taps[0][one])

    def draft(self, batch: ForwardBatch, counts: torch.Tensor, most: Sequence[int]) -> torch.Tensor:
        tokens, guesses = batch.token_ids, []
        state, read = self.before(batch.caches[0], batch.row_slot, batch.positions)
        for _ in range(most[0]):
            state = read = self.step(state, read, tokens)
            tokens = (state @ self.head.T).argmax(-1)
            guesses.append(tokens)
        return torch.stack(guesses, 1)

    def step(self, state: torch.Tensor, read: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """[n, HIDDEN] both, and [n], to [n, HIDDEN]."""
        return torch.tanh(torch.cat((state, read, self._embed(tokens)), -1) @ self.cell.T)

    def before(
        self, cache: CacheView, slot: torch.Tensor, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """State and tap of the token before a position, [n, HIDDEN]; zeros before the first."""
        page, offset = self.place(cache, slot, (position - 1).clamp(min=0))
        inside = (position > 0)[:, None]
        kept = (each[0][page, 0, offset] for each in (cache.keys, cache.values))
        state, read = (torch.where(inside, each, 0.0) for each in kept)
        return state, read

    def keep(
        self,
        cache: CacheView,
        slot: torch.Tensor,
        position: torch.Tensor,
        state: torch.Tensor,
        read: torch.Tensor,
    ) -> None:
        page, offset = self.place(cache, slot, position)
        cache.keys[0][page, 0, offset] = state
        cache.values[0][page, 0, offset] = read

    def place(
        self, cache: CacheView, slot: torch.Tensor, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Page and offset, [n] both."""
        page = cache.page_table[slot.long(), (position // self._page_size).long()]
        return page.long(), (position % self._page_size).long()


def run(check: str, backend: Callable[[], Any]) -> None:
    CHECKS[check](lambda: DraftRunner(backend(), {}, TARGET), VOCAB)


@pytest.mark.parametrize("check", CHECKS)
def test_a_sound_one_passes(check: str) -> None:
    run(check, Recurrent)


class Constant(Recurrent):
    def step(self, state: Any, read: Any, tokens: Any) -> Any:
        return torch.ones_like(state)


class NoTokens(Recurrent):
    def draft(self, *args: Any) -> Any:
        return super().draft(*args) + VOCAB


class Small(Recurrent):
    def draft(self, *args: Any) -> Any:
        return super().draft(*args).to(torch.int32)


class Few(Recurrent):
    def draft(self, *args: Any) -> Any:
        return super().draft(*args)[:, :1]


class Dicing(Recurrent):
    def step(self, state: Any, read: Any, tokens: Any) -> Any:
        return torch.rand_like(state)


class Remembering(Recurrent):
    """Guessing leaves a trace where nothing is observed again."""

    def draft(self, batch: Any, *args: Any) -> Any:
        guesses = super().draft(batch, *args)
        page, offset = self.place(batch.caches[0], batch.row_slot, batch.positions - 1)
        batch.caches[0].keys[0][page, 0, offset] = 1.0
        return guesses


class FirstRow(Recurrent):
    def draft(self, batch: Any, counts: Any, most: Any) -> Any:
        return super().draft(batch, counts, most)[:1].expand(len(most), -1)


class Forgetful(Recurrent):
    """Begins anew with every chunk."""

    _first: Any = None

    def observe(self, batch: Any, taps: Any) -> None:
        self._first = batch.positions[batch.query_start[:-1].long()]
        super().observe(batch, taps)

    def before(self, cache: Any, slot: Any, position: Any) -> Any:
        if self._first is not None:
            first = (position[:, None] == self._first).any(1)
            position = torch.where(first, 0, position)
        return super().before(cache, slot, position)


class Early(Recurrent):
    """Keeps a pair at the position of what was read, as if that had come with its token."""

    def keep(self, cache: Any, slot: Any, position: Any, state: Any, read: Any) -> None:
        super().keep(cache, slot, (position - 1).clamp(min=0), state, read)

    def before(self, cache: Any, slot: Any, position: Any) -> Any:
        return super().before(cache, slot, torch.where(position > 1, position - 1, position))


class OnTheSide(Recurrent):
    """Keeps its states by slot, in memory of its own."""

    def build(self, *args: Any) -> Any:
        built = super().build(*args)
        self._kept = torch.zeros(2, 8, 64, HIDDEN, dtype=self.cell.dtype)
        return built

    def keep(self, cache: Any, slot: Any, position: Any, state: Any, read: Any) -> None:
        self._kept[:, slot.long(), position.long()] = torch.stack((state, read))

    def before(self, cache: Any, slot: Any, position: Any) -> Any:
        kept = self._kept[:, slot.long(), (position - 1).clamp(min=0).long()]
        return tuple(torch.where((position > 0)[:, None], kept, 0.0))


class Stubborn(Recurrent):
    """What it has of a slot and a position it never makes again."""

    def build(self, *args: Any) -> Any:
        self._had = torch.zeros(8, 64, dtype=torch.bool)
        return super().build(*args)

    def keep(self, cache: Any, slot: Any, position: Any, state: Any, read: Any) -> None:
        page, offset = self.place(cache, slot, position)
        had = self._had[slot.long(), position.long()][:, None]
        old = (each[0][page, 0, offset] for each in (cache.keys, cache.values))
        kept = (torch.where(had, o, n) for o, n in zip(old, (state, read), strict=True))
        super().keep(cache, slot, position, *kept)
        self._had[slot.long(), position.long()] = True


class Wide(Recurrent):
    """Writes behind its guesses."""

    def draft(self, batch: Any, counts: Any, most: Any) -> Any:
        page, offset = self.place(batch.caches[0], batch.row_slot[-1:], batch.positions[-1:])
        batch.caches[0].keys[0][page, 0, (offset + most[-1]) % self._page_size] = 9.0
        return super().draft(batch, counts, most)


class Reading(Recurrent):
    """Asks the device how many guesses there are."""

    def draft(self, batch: Any, counts: Any, most: Any) -> Any:
        return super().draft(batch, counts, counts.tolist())


class Deciding(Recurrent):
    """Stops early where it is sure."""

    def step(self, state: Any, read: Any, tokens: Any) -> Any:
        made = super().step(state, read, tokens)
        return made if made.abs().max() > 0 else state


class ToTheEnd(Recurrent):
    """Keeps what it guesses from, of all that it is launched for."""

    def draft(self, batch: Any, counts: Any, most: Any) -> Any:
        guesses = super().draft(batch, counts, most)
        for place in range(most[0]):
            position = (batch.positions + place).clamp(max=47)
            state, read = self.before(batch.caches[0], batch.row_slot, position)
            self.keep(batch.caches[0], batch.row_slot, position, state + 1, read)
        return guesses


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
    ("captured", Reading, "tolist reads from the device"),
    ("rows", Deciding, "is_nonzero.default reads from the device"),
    ("captured", ToTheEnd, "it writes where it must not"),
]


@pytest.mark.parametrize(("check", "drafter", "message"), FAULTS)
def test_faults_are_found(check: str, drafter: type[Recurrent], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run(check, drafter)
