# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A device that knows page tables only from deltas, and notices every page mix-up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tokenspeed._scheduler import Config, Plan, PlanBuffers, RowFlag, max_copies, max_transfer_pages

from .truth import GARBAGE, Asked, in_group

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Group:
    kind: str
    page_size: int
    window: int = 0


class Arrays:
    """The arrays that a plan is written to."""

    def __init__(
        self, config: Config, groups: int, max_seqs: int, max_step_tokens: int, max_deltas: int
    ) -> None:
        rows = {"row_request": "u8", "row_slot": "i4", "row_epoch": "u4", "row_flags": "u1"}
        self.by_name: dict[str, Array] = {n: np.zeros(max_seqs, t) for n, t in rows.items()}
        self.by_name["row_kv_len"] = np.zeros(max_seqs, "i4")
        self.by_name["row_query_start"] = np.zeros(max_seqs + 1, "i4")
        for name in ("token_ids", "positions"):
            self.by_name[name] = np.zeros(max_step_tokens, "i4")
        for name in ("delta_slot", "delta_index", "delta_page"):
            self.by_name[name] = np.zeros((groups, max_deltas), "i4")
        self.by_name["delta_epoch"] = np.zeros((groups, max_deltas), "u4")
        for name in ("copy_source", "copy_target"):
            self.by_name[name] = np.zeros(max_copies(config), "i4")
        for name in ("store", "load"):
            pages = max_transfer_pages(config)
            self.by_name[f"{name}_transfer"] = np.zeros(pages, "u8")
            self.by_name[f"{name}_source"] = np.zeros(pages, "i4")
            self.by_name[f"{name}_target"] = np.zeros(pages, "i4")
        self.buffers = PlanBuffers(**self.by_name)

    def read(self, name: str, count: int) -> list[int]:
        return self.by_name[name][:count].tolist()  # type: ignore[no-any-return]

    def columns(self, names: list[str], count: int) -> Iterator[tuple[int, ...]]:
        return zip(*(self.read(name, count) for name in names), strict=True)

    def deltas(self, group: int, count: int) -> Iterator[tuple[int, ...]]:
        """(slot, epoch, index, page) of every delta of a group."""
        names = ("delta_slot", "delta_epoch", "delta_index", "delta_page")
        columns = (self.by_name[name][group, :count].tolist() for name in names)
        return zip(*columns, strict=True)


@dataclass(frozen=True)
class Row:
    request: int
    slot: int
    epoch: int
    flags: int
    kv_len: int
    tokens: list[int]
    positions: list[int]

    @property
    def decodes(self) -> bool:
        return bool(self.flags & RowFlag.DECODE)

    @property
    def emits(self) -> bool:
        return bool(self.flags & RowFlag.EMITS)


def rows_of(arrays: Arrays, plan: Plan) -> list[Row]:
    names = ["row_request", "row_slot", "row_epoch", "row_flags", "row_kv_len"]
    starts = arrays.read("row_query_start", plan.num_rows + 1)
    tokens = arrays.read("token_ids", plan.num_tokens)
    positions = arrays.read("positions", plan.num_tokens)
    return [
        Row(*columns, tokens[begin:end], positions[begin:end])
        for columns, begin, end in zip(
            arrays.columns(names, plan.num_rows), starts, starts[1:], strict=False
        )
    ]


@dataclass
class Page:
    kv: dict[int, int] = field(default_factory=dict)  # by offset
    touched: int = -1  # the last step that reads or writes it
    written: int = -1
    stores: int = 0  # transfers that read it; on the host: that write it
    loads: int = 0  # transfers that write it; on the host: that read it


@dataclass
class Tenant:
    epoch: int = 0
    installed: int = 0  # the epoch whose sampling state is in place
    length: int = 0  # tokens whose KV is in place
    tables: dict[tuple[int, int], int] = field(default_factory=dict)  # (group, index) to page


@dataclass
class Transfer:
    is_load: bool
    moves: list[tuple[Page, Page]] = field(default_factory=list)  # (source, target)


class Device:
    """Executes plans in order; transfers move their bytes at their ack and watch both ends."""

    def __init__(self, groups: list[Group], num_pages: int, host_pages: int) -> None:
        self.groups = groups
        self.pages = {page: Page() for page in range(1, num_pages + 1)}
        self.host = {page: Page() for page in range(1, host_pages + 1)}
        self.tenants: dict[int, Tenant] = {}
        self.transfers: dict[int, Transfer] = {}
        self.step = -1
        self.committed = -1

    # -- Pages -----------------------------------------------------------------------------------

    def entry(self, tenant: Tenant, group: int, position: int, *, writes: bool) -> Page:
        page = self.pages[tenant.tables[group, self.address(group, position)[0]]]
        assert page.loads == 0, "a row uses a page that a load still writes"
        assert not writes or page.stores == 0, "a row writes a page that a store still reads"
        page.touched = self.step
        page.written = self.step if writes else page.written
        return page

    def address(self, group: int, position: int) -> tuple[int, int]:
        """Table entry and offset. A state group has one page, which every row overwrites."""
        spec = self.groups[group]
        return (0, 0) if spec.kind == "state" else divmod(position, spec.page_size)

    def offset(self, group: int, position: int) -> int:
        return self.address(group, position)[1]

    def begin_step(self, arrays: Arrays, plan: Plan) -> None:
        """Deltas, then copies; transfers begin."""
        self.step = plan.step
        for group, count in enumerate(plan.num_deltas):
            for slot, epoch, index, page in arrays.deltas(group, count):
                self.apply_delta(group, slot, epoch, index, page)
        for kind, count in (("store", plan.num_stores), ("load", plan.num_loads)):
            names = [f"{kind}_transfer", f"{kind}_source", f"{kind}_target"]
            for transfer, source, target in arrays.columns(names, count):
                self.begin_transfer(transfer, kind == "load", source, target)
        for source, target in arrays.columns(["copy_source", "copy_target"], plan.num_copies):
            self.copy(self.pages[source], self.pages[target])

    def apply_delta(self, group: int, slot: int, epoch: int, index: int, page: int) -> None:
        assert page in self.pages
        tenant = self.tenants.setdefault(slot, Tenant())
        if epoch < tenant.epoch:
            return  # of a tenant that left in the step in which it came
        if epoch > tenant.epoch:
            tenant.epoch = epoch
            tenant.tables.clear()
        tenant.tables[group, index] = page

    def copy(self, source: Page, target: Page) -> None:
        assert source is not target
        assert source.loads == target.loads == 0, "a copy uses a page that a load still writes"
        assert target.stores == 0, "a copy writes a page that a store still reads"
        target.kv = dict(source.kv)
        source.touched = target.touched = target.written = self.step

    # -- Transfers -------------------------------------------------------------------------------

    def begin_transfer(self, number: int, is_load: bool, source: int, target: int) -> None:
        transfer = self.transfers.setdefault(number, Transfer(is_load))
        assert transfer.is_load == is_load
        page = self.pages[target if is_load else source]
        host = self.host[source if is_load else target]
        assert page.loads == 0
        assert host.stores == 0
        if is_load:
            assert page.touched <= self.committed, "a load into a page that is still in use"
            assert page.stores == 0
            page.loads += 1
            host.loads += 1
        else:
            assert page.written <= self.committed, "a store of a page that is still being written"
            assert host.loads == 0
            page.stores += 1
            host.stores += 1
        transfer.moves.append((host, page) if is_load else (page, host))

    def end_transfer(self, number: int, ok: bool) -> None:
        transfer = self.transfers.pop(number)
        for source, target in transfer.moves:
            for page in (source, target):
                page.loads -= transfer.is_load
                page.stores -= not transfer.is_load
            target.kv = dict(source.kv) if ok else {}

    # -- Rows ------------------------------------------------------------------------------------

    def run_row(self, row: Row, asked: Asked, *, fails: bool, accept: int) -> list[int]:
        """The tokens that come back. Of its drafts, ``accept`` at most are right."""
        tenant = self.tenants[row.slot]
        assert row.epoch == tenant.epoch
        start = row.kv_len - len(row.tokens)
        assert row.positions == list(range(start, row.kv_len))
        is_new = tenant.installed != tenant.epoch
        assert bool(row.flags & RowFlag.NEW_TENANT) == is_new
        if is_new:
            assert not row.decodes
            tenant.installed, tenant.length = tenant.epoch, start
        # Drafts that were refused in a step in flight make the plan's positions upper bounds.
        assert start == tenant.length or (row.decodes and start > tenant.length)
        asked.poisoned |= fails
        if not asked.poisoned:
            self.check_visible(tenant, asked)
        return (
            self.decode(row, tenant, asked, accept)
            if row.decodes
            else self.prefill(row, tenant, asked)
        )

    def check_visible(self, tenant: Tenant, asked: Asked) -> None:
        """All that attention reads of the tokens in place, and the recurrent states."""
        end = tenant.length
        for group, spec in enumerate(self.groups):
            first = {"full": 0, "sliding": end - spec.window + 1, "state": end - 1}[spec.kind]
            for position in range(max(0, first), end):
                page = self.entry(tenant, group, position, writes=False)
                found = page.kv.get(self.offset(group, position))
                assert found == in_group(asked.kv(position), group), "KV that is not its own"

    def write(self, tenant: Tenant, position: int, kv: int, *, states: bool) -> None:
        for group, spec in enumerate(self.groups):
            if (spec.kind == "state") == states:
                page = self.entry(tenant, group, position, writes=True)
                page.kv[self.offset(group, position)] = in_group(kv, group)

    def prefill(self, row: Row, tenant: Tenant, asked: Asked) -> list[int]:
        for position, token in enumerate(row.tokens, tenant.length):
            assert token == asked.token(position)
            kv = GARBAGE if asked.poisoned else asked.kv(position)
            self.write(tenant, position, kv, states=False)
        tenant.length += len(row.tokens)
        self.write(tenant, tenant.length - 1, kv, states=True)
        return [asked.token(tenant.length)] if row.emits else []

    def decode(self, row: Row, tenant: Tenant, asked: Asked, accept: int) -> list[int]:
        start, accepted = tenant.length, min(accept, len(row.tokens) - 1)
        for i in range(len(row.tokens)):
            right = i <= accepted and not asked.poisoned
            kv = asked.kv(start + i) if right else GARBAGE
            self.write(tenant, start + i, kv, states=False)
        tenant.length = start + 1 + accepted
        last = tenant.length - 1
        kv = GARBAGE if asked.poisoned else asked.kv(last)
        self.write(tenant, last, kv, states=True)
        return [asked.token(position) for position in range(start + 1, tenant.length + 1)]

    def check_table(self, slot: int, group: int, expected: list[int]) -> None:
        """Wherever the scheduler still names a page, the device's table names it too."""
        table = self.tenants[slot].tables
        wrong = [i for i, page in enumerate(expected) if page and table.get((group, i)) != page]
        assert not wrong, f"entries {wrong} of group {group}"
