# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which kernel serves which call site, and why.

    registry = KernelRegistry(plan.plugins, plan.engine.pins)
    model = entry.build(config, BuildContext(kernels=registry, ...))
    registry.check_pins()          # every pin met a call site
    registry.check_wired()         # every kernel plugin is a candidate for something

The highest score wins, ties go by name, the sdk's reference comes last; with a tuner, the fastest
of those that compete. A pin is honoured or refused, never replaced. What wins may depend on the
number of rows.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tokenspeed_sdk.contracts.kernel import (
    Binding,
    BoundKernel,
    CallSite,
    Kernel,
    PlannedKernel,
)
from tokenspeed_sdk.contracts.observer import KernelChoice
from tokenspeed_sdk.ops import OPS

from tokenspeed.plugins.choose.decision import REFUSED, Decision, RunnerUp
from tokenspeed.plugins.choose.usable import Refused
from tokenspeed.plugins.discover.claims import REFERENCE
from tokenspeed.plugins.errors import PluginError, UnknownNameError, did_you_mean
from tokenspeed.plugins.load.activate import activate
from tokenspeed.plugins.load.wiring import Wired, check_wired
from tokenspeed.plugins.plan import Planned, PluginPlan, platform_devices
from tokenspeed.plugins.words import counted
from tokenspeed.registry import by_rows
from tokenspeed.registry.autotune import Autotuner
from tokenspeed.registry.candidates import (
    Candidate,
    Judged,
    Reference,
    broken_kernel,
    is_needed,
    judge,
    no_kernel,
    own,
    rank,
    read_kernels,
    unfit,
)
from tokenspeed.registry.contest import Contest, Source, best, why_chosen, why_lost
from tokenspeed.registry.guard import ResultChecks, guard, guard_packing

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BoundSite:
    """A call site and the decisions that were taken for it: one, unless it depends on the rows.

    Attributes:
        contests: what decided in each bucket of rows.
    """

    site: CallSite
    decisions: tuple[Decision, ...]
    contests: tuple[Contest, ...] = ()

    @property
    def decision(self) -> Decision:
        """The decision for the fewest rows."""
        return self.decisions[0]


@dataclass(frozen=True)
class _Part:
    """The kernel that serves some row buckets of a site; ``site`` has their range of rows."""

    site: CallSite
    chosen: Judged
    judged: tuple[Judged, ...]
    buckets: tuple[by_rows.RowRange, ...]
    contest: Contest

    @property
    def name(self) -> str:
        return self.chosen.candidate.name

    @property
    def kernel(self) -> Kernel:
        """One whose plugin is broken has no score and is never chosen."""
        kernel = self.chosen.candidate.kernel
        assert not isinstance(kernel, PluginError)
        return kernel

    @property
    def packing(self) -> Callable[[Any], Any]:
        return guard_packing(self.chosen.candidate, own(self.site))


class _Unfit(Exception):  # noqa: N818  # not an error: the next best is asked
    """A kernel that accepted a site cannot be bound to it, and nothing stands on its plugin."""

    def __init__(self, judged: Judged) -> None:
        super().__init__(judged.reason)
        self.judged = judged


class KernelRegistry:
    """Implements the sdk's KernelResolver over the kernels of a plan and the sdk's references.

    Attributes:
        bound: every site that was asked for, in order, with its decisions.
        refused: a row for every plugin that is left out because it is broken.
    """

    def __init__(
        self,
        plan: PluginPlan,
        pins: Mapping[str, str],
        refused: Iterable[Refused] = (),
        *,
        check_results: bool = False,
        tuner: Autotuner | None = None,
    ) -> None:
        """PluginError: a plugin that the launch stands on is broken.

        Args:
            refused: plugins that are in no plan; their claims are shown with the reasons.
            check_results: as if everything happened inside ``checked_results``; slow.
            tuner: knows or measures which kernel is the fastest; without one, scores decide.
        """
        self.bound: list[BoundSite] = []
        self.refused: list[Decision] = []
        self._pins = dict(pins)
        self._tuner = tuner
        self._checks = ResultChecks(check_results)
        self._in_parts: set[str] = set()  # fused ops that a pin switches off
        self._warned: set[tuple[str, str]] = set()
        self._judged: dict[tuple[str, Hashable], Judged] = {}
        self._providers: list[tuple[Planned, frozenset[str]]] = []
        self._candidates: dict[str, list[Candidate]] = {
            name: [Candidate(REFERENCE, "tokenspeed-sdk", Reference(op), True)]
            for name, op in OPS.items()
        }
        needed = partial(is_needed, plan=plan, pins=self._pins)
        for active in activate(plan.of("kernel"), read_kernels, needed):
            if active.error is not None:
                self._add_refused(active.planned, active.error)
                continue
            kernels = active.value or ()
            self._providers.append((active.planned, frozenset(k.op for k in kernels)))
            for k in kernels:
                self._add(k.op, Candidate(k.name, active.planned.owner, k, needed(active.planned)))
        devices = platform_devices(plan.platform, plan.provisions)
        for plugin, error in ((each.plugin, each.error) for each in refused):
            for planned in plugin.provisions:
                if planned.contract == "kernel" and planned.fits(devices):
                    self._add_failed(planned, error)

    def bind(self, site: CallSite) -> Binding:
        """The kernel for a site. NoKernelError names the op, the site and every refusal."""
        ruled_out: dict[str, Judged] = {}
        while True:
            try:
                return self._bind(site, ruled_out)
            except _Unfit as failed:  # each round rules one out, so this ends
                ruled_out[failed.judged.candidate.name] = failed.judged

    def bind_fused(self, site: CallSite, parts: Collection[str]) -> Binding | None:
        """See the sdk's FusingResolver. NoKernelError: the site's op is pinned to a misfit.

        A site that stays in parts is not noted.
        """
        if self._pins.get(site.op) == REFERENCE:
            self._in_parts.add(site.op)
            return None
        if any(part in self._pins for part in parts):
            return None
        binding = self.bind(site)
        if any(decision.chosen == REFERENCE for decision in self.bound[-1].decisions):
            self.bound.pop()
            return None
        return binding

    def rehearse(self, build: Callable[[], object]) -> None:
        """Let the tuner measure what ``build`` binds, before memory is filled; notes nothing."""
        if self._tuner is not None:
            with closing(self._tuner):
                build()
            self.bound.clear()

    def checked_results(
        self, doing: Callable[[str], None] = lambda what: None
    ) -> AbstractContextManager[None]:
        """Inside, a kernel whose result has another shape, dtype or device raises, naming it.

        Args:
            doing: hears whose kernel will run, before each call, and "" at the end.
        """
        return self._checks.on(doing)

    def row_samples(self) -> tuple[int, ...]:
        """Numbers of rows that together call every kernel that was chosen."""
        depends = any(len(b.decisions) > 1 or b.site.rows != (1, None) for b in self.bound)
        return tuple(low for low, _ in by_rows.BUCKETS) if depends else (1,)

    def check_pins(self) -> None:
        """Call once the model is built. UnknownNameError: a pin whose op the model never calls."""
        ops = {bound.site.op for bound in self.bound} | self._in_parts
        for op, kernel in self._pins.items():
            if op not in ops:
                raise UnknownNameError(
                    f'the model never calls op "{op}"',
                    where=f"pin {op}={kernel}",
                    fix=did_you_mean(op, ops),
                )

    def wired(self) -> list[Wired]:
        """Where each kernel plugin ended up."""
        chosen = Counter((c.owner, c.op) for c in self.choices() for _ in range(c.sites))
        found = []
        for planned, ops in self._providers:
            sites = sum(chosen[planned.owner, op] for op in ops)
            what = f"candidate for {counted(len(ops), 'op')}, chosen at {counted(sites, 'site')}"
            found.append(Wired(planned, len(ops), what))
        return found

    def check_wired(self) -> None:
        """NotWiredError: a plugin was activated and brings no kernel."""
        check_wired((planned for planned, _ in self._providers), self.wired())

    def choices(self) -> list[KernelChoice]:
        """What was chosen, each with the number of call sites; for labels of metrics."""
        count = Counter(
            (b.site.op, d.chosen, d.owner, b.site.dtype, b.site.role)
            for b in self.bound
            for d in {(d.chosen, d.owner): d for d in b.decisions}.values()
        )
        return [KernelChoice(*key, sites=sites) for key, sites in sorted(count.items())]

    def table(self) -> list[Decision]:
        """The distinct decisions over all call sites, and the broken plugins."""
        count = Counter(decision for bound in self.bound for decision in bound.decisions)
        return [*(replace(d, sites=sites) for d, sites in count.items()), *self.refused]

    def explain(self, op: str | None = None) -> list[tuple[BoundSite, int]]:
        """The distinct decisions, each with the number of call sites that it stands for."""
        distinct: dict[Any, list[BoundSite]] = {}
        for bound in self.bound:
            site = bound.site
            if op in (None, site.op):
                key = (site.op, site.dtype, site.role, tuple(sorted(site.traits.items())))
                distinct.setdefault((key, bound.decisions), []).append(bound)
        return [(group[0], len(group)) for group in distinct.values()]

    def _add(self, op: str, candidate: Candidate) -> None:
        self._candidates.setdefault(op, []).append(candidate)

    def _add_refused(self, planned: Planned, error: PluginError) -> None:
        role = f"{planned.contract} {planned.name}"
        self.refused.append(Decision(role, REFUSED, planned.owner, error.reason))
        self._add_failed(planned, error)

    def _add_failed(self, planned: Planned, error: PluginError) -> None:
        """Its kernels stay in sight, each with the reason against it."""
        for claim in planned.claims:
            op, _, name = claim.rpartition(":")
            self._add(op, Candidate(name, planned.owner, error, needed=False))

    def _bind(self, site: CallSite, ruled_out: Mapping[str, Judged]) -> Binding:
        ranges = by_rows.buckets(site.rows)
        chosen = [self._choose(replace(site, rows=rows), ruled_out, self._tuner) for rows in ranges]
        parts = [
            part
            for name in dict.fromkeys(part.name for part in chosen)
            for run in _runs(chosen, name)
            for part in self._merge(run)
        ]
        calls = [self._bind_part(part) for part in parts]
        if len(parts) > 1 and any(isinstance(call, PlannedKernel) for call in calls):
            # One that plans serves all numbers of rows.
            chosen = parts = [self._choose(site, ruled_out)]
            calls = [self._bind_part(parts[0])]
        self._note(site, parts, tuple(part.contest for part in chosen))
        if len(parts) > 1:
            return _by_rows(ranges, parts, calls)
        return Binding(parts[0].name, calls[0], parts[0].packing)

    def _merge(self, run: Sequence[_Part]) -> Sequence[_Part]:
        """The buckets as one part, if the kernel takes them together, so that it is bound once."""
        first = run[0]
        if len(run) == 1:
            return run
        rows = by_rows.hull([part.site.rows for part in run])
        site = replace(first.site, rows=rows)
        together = judge(first.chosen.candidate, site)
        self._warn(site, together)
        if together.score is None:
            return run
        return [replace(first, site=site, buckets=tuple(part.site.rows for part in run))]

    def _choose(
        self, site: CallSite, ruled_out: Mapping[str, Judged], tuner: Autotuner | None = None
    ) -> _Part:
        pin = self._pins.get(site.op)
        traits = tuple(site.traits.items())
        shape = (site.op, site.dtype, site.device, site.role, site.rows, traits)
        judged = tuple(
            ruled_out.get(candidate.name) or self._judge(candidate, site, shape)
            for candidate in self._candidates.get(site.op, [])
        )
        for j in judged:
            self._warn(site, j)
        fit = [j for j in judged if j.score is not None and pin in (None, j.candidate.name)]
        if not fit:
            raise no_kernel(site, judged, pin)
        times = tuner.times(site, [j.candidate for j in fit]) if tuner and not pin else {}
        winner, by_time = best(fit, times)
        source: Source = "pin" if pin else "score"
        if tuner and by_time:
            source = "measured" if tuner.has_measured(site) else "cache"
        contest = Contest(site.rows, source, winner.candidate.name, times)
        return _Part(site, winner, judged, (site.rows,), contest)

    def _judge(self, candidate: Candidate, site: CallSite, shape: Hashable) -> Judged:
        """Asked once for equal sites: an answer may depend on all but the layer."""
        found = self._judged.get((candidate.name, shape))
        if found is None:
            found = judge(candidate, site)
            if found.error is None:
                self._judged[candidate.name, shape] = found
        return found

    def _bind_part(self, part: _Part) -> BoundKernel:
        candidate, site = part.chosen.candidate, part.site
        try:
            call = part.kernel.bind(own(site))
            if not callable(call):
                raise broken_kernel(candidate, site, "bind", call, "a callable")
        except BaseException as error:
            raise _Unfit(unfit(candidate, site, error)) from error
        return guard(call, site, candidate.name, candidate.owner, self._checks)

    def _warn(self, site: CallSite, judged: Judged) -> None:
        """Once, however many sites it fails at."""
        key = (site.op, judged.candidate.name)
        if judged.error is not None and key not in self._warned:
            self._warned.add(key)
            _log.warning("kernel %s of %s is left out for %s", judged.candidate.name,
                         judged.candidate.owner, site.op, exc_info=judged.error)  # fmt: skip

    def _note(self, site: CallSite, parts: Sequence[_Part], contests: tuple[Contest, ...]) -> None:
        named = [replace(part, buckets=()) for part in parts] if len(parts) == 1 else parts
        self.bound.append(BoundSite(site, tuple(_decide(part) for part in named), contests))


def _runs(parts: Sequence[_Part], name: str) -> list[list[_Part]]:
    """The buckets that a kernel won, apart where it declined one that lies between."""
    runs: list[list[_Part]] = [[]]
    for part in parts:
        if part.name == name:
            runs[-1].append(part)
        elif runs[-1] and not any(
            j.candidate.name == name and j.score is not None for j in part.judged
        ):
            runs.append([])
    return [run for run in runs if run]


def _by_rows(
    ranges: Sequence[by_rows.RowRange], parts: Sequence[_Part], calls: Sequence[BoundKernel]
) -> Binding:
    limits = [limit for _, limit in ranges[:-1] if limit is not None]
    places = {bucket: place for place, part in enumerate(parts) for bucket in part.buckets}
    return Binding(
        kernel="+".join(dict.fromkeys(part.name for part in parts)),
        call=by_rows.dispatch(limits, [places[bucket] for bucket in ranges], calls),
        pack_weight=by_rows.pack_for_all([part.packing for part in parts]),
    )


def _decide(part: _Part) -> Decision:
    chosen = part.chosen
    others = sorted((j for j in part.judged if j is not chosen), key=rank)
    return Decision(
        role=part.site.op,
        chosen=chosen.candidate.name,
        owner=chosen.candidate.owner,
        why=why_chosen(chosen, part.contest),
        runners_up=tuple(
            RunnerUp(j.candidate.name, j.candidate.owner, why_lost(j, part.contest)) for j in others
        ),
        rows=", ".join(by_rows.text(rows) for rows in part.buckets),
    )
