# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A target that is played, and a drafter's model driven beside it, without an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tokenspeed_sdk.contracts.drafter import DraftModel, DraftModelBackend
from tokenspeed_sdk.modeling.batch import ForwardBatch
from tokenspeed_sdk.modeling.config import ConfigReader
from tokenspeed_sdk.modeling.weights import WeightMap
from tokenspeed_sdk.testing.drafter.launches import Launches
from tokenspeed_sdk.testing.model.runner import ModelRunner, PagedCache, Row, plain_context

PAGE_SIZE, SLOTS, PAGES = 4, 6, 12
"""Of a slot: its pages."""

SENTINEL = SLOTS + 1
"""A slot whose page table is the null page."""

MOST_CAPTURED = 5
"""Guesses that a captured step has room for in each row."""

DTYPE = "float64"
"""So that no rounding decides between two guesses."""

DECAY = 0.6
"""What of a hidden state the next token's has."""


GAIN = 2.0
"""How much a product with a made-up weight spreads what it gets: all that a drafter keeps is to
show in its guesses."""


class PlayedTarget:
    """Hidden states that depend on all tokens so far, and an embedding; a TappedModel otherwise
    without use."""

    def __init__(self, config: Mapping[str, Any], taps: Sequence[int]) -> None:
        """``config``: parsed config.json of the target."""
        read = ConfigReader(config)
        vocab, hidden = read.size("vocab_size"), read.size("hidden_size")
        random = torch.Generator().manual_seed(0)
        options: dict[str, Any] = {"generator": random, "dtype": torch.float64}
        self._embedding = torch.randn(vocab, hidden, **options)
        turns = {tap: torch.randn(hidden, hidden, **options) for tap in sorted({*taps})}
        turns = {tap: turn * hidden**-0.5 for tap, turn in turns.items()}
        self._turns = [turns[tap] for tap in taps]

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[tokens] -> [tokens, hidden]."""
        return self._embedding[token_ids]

    def taps(self, text: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """What the layers read of each token of a text, [tokens, hidden] each."""
        states, state = [], torch.zeros_like(self._embedding[0])
        for token in text:
            state = DECAY * state + self._embedding[token]
            states.append(state)
        stream = torch.stack(states)
        return tuple(stream @ turn for turn in self._turns)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        raise NotImplementedError

    def forward_tapped(self, batch: ForwardBatch) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        raise NotImplementedError

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def weight_map(self) -> WeightMap:
        raise NotImplementedError

    def prepare(self) -> None:
        raise NotImplementedError


class DraftRunner(ModelRunner):
    """A drafter's model with made-up weights: texts by slot, in pages that hold rubbish first.

    Attributes:
        drafter: the model.
        launches: what it may do.
        texts: what was observed, by slot.
    """

    def __init__(
        self, backend: DraftModelBackend, config: Mapping[str, Any], target: Mapping[str, Any]
    ) -> None:
        """``config``, ``target``: the parsed config.json of both."""
        own = backend.read_config(config, target)
        self.played = PlayedTarget(target, backend.taps(own))
        self.launches = Launches()
        context = plain_context(
            DTYPE,
            kernels=self.launches.resolver,
            max_model_len=PAGE_SIZE * PAGES,
            page_size=PAGE_SIZE,
            role="drafter",
        )
        self.drafter: DraftModel = backend.build(own, context, self.played, ())
        _make_up(self.drafter.weight_map())
        self.drafter.prepare()
        cache = PagedCache(
            backend.cache_groups(own),
            slots=SLOTS,
            pages_per_slot=PAGES,
            page_size=PAGE_SIZE,
            dtype=torch.float64,
            device="cpu",
            seed=0,
        )
        super().__init__(self.played, cache)
        self.texts: dict[int, list[int]] = {}

    @torch.inference_mode()
    def observe(self, tokens: Mapping[int, Sequence[int]], *, guessed: bool = False) -> None:
        """One step: each slot's text goes on.

        ``guessed``: all rows are as of prompts, though some have one token; so is a step that
        verifies guesses.
        """
        rows = [self._take(slot, new) for slot, new in tokens.items()]
        if not guessed:
            rows.sort(key=lambda row: len(row.tokens) != 1)
        decoding = 0 if guessed else sum(len(row.tokens) == 1 for row in rows)
        parts = []
        for row in rows:
            text = self.texts[row.slot] = [*self.texts.get(row.slot, [])[: row.start], *row.tokens]
            parts.append([tap[row.start :] for tap in self.played.taps(text)])
        taps = tuple(torch.cat(each) for each in zip(*parts, strict=True))
        with self.launches.only():
            self.drafter.observe(self._batch(rows, decoding), taps)

    @torch.inference_mode()
    def draft(
        self, wanted: Mapping[int, tuple[int, int]], *, captured: bool = False
    ) -> dict[int, list[int]]:
        """Guesses of several slots, by what was said last and how many are wanted; in the form
        that the contract states.

        ``captured``: launched as a step that is captured, for any rows that are no more than these
        and one, and any guesses.
        """
        falling = sorted(wanted, key=lambda slot: -wanted[slot][1])
        rows = [self._begin(slot, *wanted[slot]) for slot in falling]
        counts = [wanted[slot][1] for slot in falling]
        most = counts
        if captured:
            rows.append(Row(SENTINEL, [0], 0, live=False))
            counts, most = [*counts, 1], [MOST_CAPTURED] * len(rows)
        batch = replace(self._batch(rows, len(rows)), max_kv_len=PAGE_SIZE * PAGES)
        if captured:
            batch = replace(batch, host_query_start=None, host_kv_len=None)
        with self.launches.only():
            guesses = self.drafter.draft(batch, torch.tensor(counts, dtype=torch.int32), most)
        assert guesses.dtype == torch.int64, f"guesses are {guesses.dtype}, not int64"
        assert guesses.dim() == 2, f"guesses have shape {list(guesses.shape)}"
        assert guesses.shape[0] == len(rows), f"{guesses.shape[0]} rows of {len(rows)} are answered"
        assert guesses.shape[1] >= most[0], f"{guesses.shape[1]} guesses, not {most[0]}"
        listed = guesses.tolist()
        return {slot: listed[row][: counts[row]] for row, slot in enumerate(falling)}

    def _begin(self, slot: int, last: int, count: int) -> Row:
        """A row with its last token; the slot has the pages that its guesses need."""
        length = self.cache.lengths[slot]
        row = self._take(slot, [last])
        self.cache.extend(slot, count - 1)
        self.cache.lengths[slot] = length
        return row

    def go_back(self, slot: int, length: int) -> None:
        """What stands behind was guessed wrong."""
        self.cache.lengths[slot] = length

    def find(self, slot: int, other: int, pages: int) -> None:
        """A new slot begins with the first pages of another one."""
        self.cache.share(slot, other, pages)
        self.texts[slot] = self.texts[other][: pages * PAGE_SIZE]

    def memory(self) -> list[torch.Tensor]:
        """All that the pages hold but the null page, copied: [pages, ..., PAGE_SIZE, ...] each."""
        return [
            part[1:].clone() for view in self.cache.views for part in (*view.keys, *view.values)
        ]

    def places(self, slot: int, positions: Sequence[int]) -> set[tuple[int, int]]:
        """Where positions of a slot lie in ``memory``: page and offset."""
        table = self.cache.page_table[slot].tolist()
        return {(table[at // PAGE_SIZE] - 1, at % PAGE_SIZE) for at in positions}


def _make_up(weights: WeightMap) -> None:
    """Vectors of ones, tables of zeros, matrices of noise."""
    random = torch.Generator().manual_seed(0)
    for parameter in weights.parameters.values():
        if parameter.dtype == torch.int64:
            parameter.zero_()
        elif parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, GAIN * parameter.shape[1] ** -0.5, generator=random)
