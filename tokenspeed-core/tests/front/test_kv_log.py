# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The log of the prefix cache: names by content, numbers, a bounded past, snapshots."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence

import pytest
from tokenspeed.front.kv_log import BATCH_EVENTS, Batch, CursorLostError, KvEventLog
from tokenspeed.front.kv_residents import (
    CLEARED,
    DEVICE,
    HOST,
    REMOVED,
    STORED,
    BlockEvent,
    parents_first,
)

from .kv_columns import chain, cleared, columns, removed, stored

PROMPT = list(range(100, 164))
"""Four blocks."""


def said(log: KvEventLog, events: Iterable[BlockEvent]) -> list[BlockEvent]:
    """What the log tells when the engine says this in one message."""
    return [event for batch in batches(log, events) for event in batch.events]


def batches(log: KvEventLog, events: Iterable[BlockEvent]) -> list[Batch]:
    cursor, told = log.number, []
    log.append(columns(events))
    while (batch := log.after(cursor)) is not None:
        assert batch.number == cursor + 1
        told.append(batch)
        cursor = batch.number
    assert cursor == log.number
    return told


def kinds(events: Sequence[BlockEvent]) -> list[tuple[int, int]]:
    return [(event.kind, event.tier) for event in events]


def test_a_prompt_is_told_with_its_tokens_parents_first() -> None:
    told = said(KvEventLog(), chain(PROMPT))
    assert b"".join(event.tokens for event in told) == columns(chain(PROMPT)).tokens
    assert [e.parent for e in told] == [0, *(e.block for e in told[:-1])]
    assert kinds(told) == [(STORED, DEVICE)] * 4


def test_names_depend_on_nothing_but_the_tokens() -> None:
    one, other = KvEventLog(), KvEventLog()
    names = [e.block for e in said(one, chain(PROMPT, first=1))]
    assert [e.block for e in said(other, chain(PROMPT, first=900))] == names
    assert len({*names, *(e.block for e in said(one, chain(PROMPT[::-1], first=50)))}) == 8
    moved = said(other, chain(PROMPT[16:], first=70))
    assert not {e.block for e in moved} & set(names), "the same tokens elsewhere are other blocks"


def test_every_tier_and_group_is_told_of_its_own() -> None:
    log = KvEventLog()
    [first] = said(log, [stored(1, PROMPT[:16])])
    [again] = said(log, [stored(1, PROMPT[:16], tier=HOST)])
    assert (first.block, first.tokens) == (again.block, again.tokens)
    assert said(log, [stored(1, PROMPT[:16], group=1)])[0].group == 1
    assert kinds(said(log, [removed(1)])) == [(REMOVED, DEVICE)]
    assert [(e.group, e.tier) for e in log.snapshot()[1]] == [(0, HOST), (1, DEVICE)]


def test_what_two_tenants_hold_is_there_until_the_last_copy_goes() -> None:
    log = KvEventLog()
    acme, other = chain(PROMPT, first=1), chain(PROMPT, first=11)
    names = [e.block for e in said(log, acme)]
    assert said(log, other) == []
    assert said(log, [removed(e.block) for e in reversed(acme)]) == []
    assert [e.block for e in log.snapshot()[1]] == names
    gone = said(log, [removed(e.block) for e in reversed(other)])
    assert [e.block for e in gone] == names[::-1]
    assert log.snapshot()[1] == []


def test_what_changes_nothing_is_not_told() -> None:
    log = KvEventLog()
    number = log.number
    assert said(log, [removed(7)]) == []
    assert log.number == number
    said(log, [stored(1, PROMPT[:16])])
    assert said(log, [stored(1, PROMPT[:16]), removed(1, tier=HOST)]) == []
    assert kinds(said(log, [removed(1)])) == [(REMOVED, DEVICE)], "stored twice is there once"


def test_what_is_gone_is_forgotten() -> None:
    log = KvEventLog()
    said(log, [stored(1, PROMPT[:16]), stored(1, PROMPT[:16], tier=HOST)])
    said(log, [removed(1), removed(1, tier=HOST)])
    assert said(log, [stored(1, PROMPT[16:32])]) == said(KvEventLog(), [stored(2, PROMPT[16:32])])


def test_a_reset_clears_all() -> None:
    log = KvEventLog()
    said(log, chain(PROMPT))
    assert kinds(said(log, [cleared()])) == [(CLEARED, 0)]
    assert log.snapshot() == (log.number, [])
    assert len(said(log, chain(PROMPT))) == 4


def test_a_long_message_is_split() -> None:
    sizes = [len(b.events) for b in batches(KvEventLog(), chain(range(16 * 1200)))]
    assert sizes == [BATCH_EVENTS, BATCH_EVENTS, 1200 - 2 * BATCH_EVENTS]


def test_the_past_is_bounded() -> None:
    log = KvEventLog(max_bytes=4000)
    start = log.number
    for i in range(100):
        log.append(columns([stored(i + 1, range(i, i + 16))]))
        log.append(columns([removed(i + 1)]))
    assert log.number == start + 200
    kept = 0
    while kept < 200:
        try:
            log.after(log.number - kept - 1)
        except CursorLostError:
            break
        kept += 1
    assert 4000 / 400 <= kept <= 4000 / 300
    for cursor in (start, log.number - kept - 1, log.number + 1, 1):
        with pytest.raises(CursorLostError):
            log.after(cursor)
    assert log.snapshot() == (log.number, [])


def test_a_batch_that_is_longer_than_the_past_can_be_read() -> None:
    log = KvEventLog(max_bytes=1)
    assert len(said(log, chain(PROMPT))) == 4


def test_numbers_of_a_later_process_are_higher() -> None:
    """Its readers come with cursors of the earlier one: they must not mean anything here."""
    earlier = KvEventLog()
    for i in range(20):
        earlier.append(columns([stored(i + 1, PROMPT[:16])]))
    time.sleep(0.001)
    with pytest.raises(CursorLostError):
        KvEventLog().after(earlier.number)


async def test_news_wake_every_reader() -> None:
    log = KvEventLog()
    waiters = [asyncio.create_task(log.news.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    log.append(columns([stored(1, PROMPT[:16])]))
    async with asyncio.timeout(10):
        await asyncio.gather(*waiters)
    assert not log.news.is_set()


def test_parents_come_first_though_they_came_back_later() -> None:
    log = KvEventLog()
    events = chain(PROMPT)
    said(log, [*events, removed(2), events[1], stored(9, PROMPT[:16], parent=4)])
    blocks = log.snapshot()[1]
    in_order = parents_first(blocks)
    assert sorted(in_order) == sorted(blocks)
    assert in_order != blocks
    for index, event in enumerate(in_order):
        assert event.parent in {0, *(earlier.block for earlier in in_order[:index])}


def test_a_replay_of_the_log_gives_the_snapshot() -> None:
    """A cache that changes at random: tenants, tiers, evictions from the leaves, resets."""
    luck, log = random.Random(5), KvEventLog()
    tree: dict[int, BlockEvent] = {}
    there: set[tuple[int, int]] = set()
    replayed: dict[tuple[int, int], BlockEvent] = {}
    most = shared = 0
    for step in range(3000):
        event = _step(luck, step, tree, there)
        for told in said(log, [event]):
            if told.kind == CLEARED:
                replayed.clear()
            elif told.kind == STORED:
                assert (told.block, told.tier) not in replayed
                replayed[told.block, told.tier] = told
            else:
                del replayed[told.block, told.tier]
        assert log.snapshot()[1] == list(replayed.values())
        most = max(most, len(replayed))
        shared += len(there) > len(replayed)
    assert most > 50
    assert shared > 100


def _step(
    luck: random.Random, step: int, tree: dict[int, BlockEvent], there: set[tuple[int, int]]
) -> BlockEvent:
    """One more event of an engine; equal tokens under two parents of equal tokens do occur."""
    if luck.random() < 0.002:
        tree.clear()
        there.clear()
        return cleared()
    parents = {tree[block].parent for block, _ in there}
    leaves = sorted(copy for copy in there if copy[0] not in parents)
    if leaves and luck.random() < 0.4:
        block, tier = luck.choice(leaves)
        there.discard((block, tier))
        return removed(block, tier=tier)
    if there and luck.random() < 0.3:
        block = luck.choice(sorted(there))[0]
        tier = luck.choice((DEVICE, HOST))
        there.add((block, tier))
        return tree[block]._replace(tier=tier)
    parent = luck.choice([0, *sorted({block for block, _ in there})])
    event = stored(step + 1, [luck.randrange(3)] * 16, parent=parent)
    tree[step + 1] = event
    there.add((step + 1, DEVICE))
    return event
