# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Kernels that compete for a call site are measured on its shapes, unless the cache knows them.

Only on a device that captures graphs: there launches are asynchronous, and can be timed without the
host's part. Elsewhere scores decide.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from tokenspeed_sdk.contracts.kernel import CallSite
from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE
from tokenspeed_sdk.ops import OPS, Op

from tokenspeed.plugins.discover.claims import REFERENCE
from tokenspeed.plugins.discover.metadata import printable
from tokenspeed.plugins.discover.origin import mend
from tokenspeed.plugins.errors import BrokenPromiseError, PluginError
from tokenspeed.plugins.load.plugin_code import as_failure
from tokenspeed.registry.candidates import Candidate, whose
from tokenspeed.registry.stopwatch import HangError, Run, Stopwatch
from tokenspeed.registry.timings import Times, Timing, TimingCache, about, kernel_key, shape_key
from tokenspeed.registry.trial import examples, prepare, rounds

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.platform import Device
    from tokenspeed_sdk.ops.examples import Calls

_log = logging.getLogger(__name__)

MOST_SECONDS = 120.0
"""After so long in one start, what is not measured yet is left to the scores and the next start."""

PROGRESS_SECONDS = 2.0

_OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)


class Autotuner:
    """Answers with times from the cache, and measures what is not there until it is closed.

    See ``on`` for ``doing``.
    """

    def __init__(
        self,
        device: Device,
        cache: TimingCache | None = None,
        clock: Callable[[], float] = time.perf_counter,
        doing: Callable[[str], None] = lambda what: None,
    ) -> None:
        self._doing = doing
        self._measured: set[str] = set()
        self._device = device
        self._cache = cache or TimingCache(about(device.capabilities))
        self._clock = clock
        self._begun = self._told = clock()
        self._watch: Stopwatch | None = None
        self._left: set[str] = set()
        self._closed = False

    @classmethod
    def on(
        cls, device: Device, mode: str, doing: Callable[[str], None] = lambda what: None
    ) -> Autotuner | None:
        """None where nothing is to be measured: it is turned off, or the device captures nothing.

        Args:
            mode: "auto" or "off".
            doing: hears whose kernel will run, for one may end the process, and "" at the end.
        """
        able = GRAPH_CAPTURE in device.capabilities.features
        return cls(device, doing=doing) if able and mode == "auto" else None

    def times(self, site: CallSite, candidates: Sequence[Candidate]) -> Mapping[str, Timing]:
        """Of those that compete for a site, by name; empty where scores decide.

        BrokenPromiseError: a kernel left the device unusable. The next start leaves it out.
        """
        op = OPS.get(site.op)
        rivals = {_key(each): each for each in candidates if each.name != REFERENCE}
        if op is None or op.example is None or len(rivals) < 2:
            return {}
        shape = shape_key(site)
        if not rivals.keys() <= self._known(site).keys():
            if self._closed or shape in self._left or not self._measure(op, site, rivals):
                return {}
            self._measured.add(shape)
            self._tell(shape)
        known = self._known(site)
        return {each.name: known[key] for key, each in rivals.items()}

    def has_measured(self, site: CallSite) -> bool:
        """Whether the times of a site were measured in this process."""
        return shape_key(site) in self._measured

    def close(self) -> None:
        """Measure no more, and give memory back: KV is sized by what is free and by the peak."""
        self._closed = True
        if self._watch is None:
            return
        self._watch.close()
        self._watch = None
        self._doing("")
        if torch.accelerator.is_available():
            gc.collect()
            torch.accelerator.empty_cache()
            torch.accelerator.reset_peak_memory_stats()
        seconds = self._clock() - self._begun
        _log.info(
            "autotune: measured kernels on %d shapes in %.1f s; times are kept in %s",
            len(self._measured), seconds, self._cache.path,
        )  # fmt: skip

    def _known(self, site: CallSite) -> Times:
        """What is known of a site's shape, and of kernels that are not tried again at any."""
        return {**self._cache.get(shape_key(site)), **self._cache.get(site.op)}

    def _measure(self, op: Op, site: CallSite, rivals: Mapping[str, Candidate]) -> bool:
        """Whether there are times now."""
        shape = shape_key(site)
        if self._watch is None:
            self._begun = self._told = self._clock()
            self._watch = Stopwatch(self._device, self._clock)
        if self._clock() - self._begun > MOST_SECONDS:
            self._leave(shape, f"{MOST_SECONDS:.0f} s of measuring are used up")
            return False
        try:
            copies = examples(op, site, self._device, self._watch)
            works, times = self._prepare(site, rivals, copies)
            took = self._watch.seconds(list(works.values()))
        except _OUT_OF_MEMORY as error:
            self._leave(shape, f"the example does not fit in memory: {error}")
            return False
        except PluginError:
            raise
        except Exception as error:
            self._require_device(site, rivals, error)
            self._leave(shape, f"{type(error).__name__}: {error}")
            return False
        for key, seconds in zip(works, took, strict=True):
            times[key] = Timing(us=round(seconds / rounds(copies) * 1e6, 2))
        self._cache.put(shape, times)
        return True

    def _prepare(
        self, site: CallSite, rivals: Mapping[str, Candidate], copies: Sequence[Calls]
    ) -> tuple[dict[str, Run], dict[str, Timing]]:
        """What to time, and the outcome of those that cannot be timed."""
        assert self._watch is not None
        works: dict[str, Run] = {}
        times = {key: timing for key, timing in self._known(site).items() if timing.failed}
        for key, each in rivals.items():
            if key in times:
                continue
            assert not isinstance(each.kernel, PluginError)
            who = whose(each.name, each.owner, site)
            self._doing(f"{who}; to do: --pin {site.op}=reference")
            try:
                work = prepare(each.kernel, site, copies, self._watch)
            except _OUT_OF_MEMORY:
                raise
            except BaseException as raised:
                error = as_failure(raised, who)
                _log.warning("%s failed while it was measured", who, exc_info=error)
                self._require_device(site, {key: each}, error)
                times[key] = _failed(error)
                continue
            if work is None:
                times[key] = Timing()
            else:
                works[key] = work
        return works, times

    def _require_device(
        self, site: CallSite, ran: Mapping[str, Candidate], error: Exception
    ) -> None:
        """BrokenPromiseError unless the device still works; what ran is not measured again then."""
        assert self._watch is not None
        try:
            if isinstance(error, HangError):
                raise error
            self._watch.finish(lambda: torch.zeros(1, device=self._device.torch_device))
        except Exception as broken:
            self._watch = None  # nor waited for
            self._cache.put(site.op, dict.fromkeys(ran, _failed(error)))
            owners = ", ".join(dict.fromkeys(each.owner for each in ran.values()))
            raise BrokenPromiseError(
                f"the device became unusable while a kernel of {owners} was measured: "
                f"{_failed(error).failed}",
                where=f"{', '.join(each.name for each in ran.values())} for {shape_key(site)}",
                fix="start again: it is not measured again, and loses; "
                f"and {mend(owners.split(maxsplit=1)[0])}",
            ) from broken

    def _leave(self, shape: str, why: str) -> None:
        self._left.add(shape)
        _log.warning("autotune: scores decide for %s: %s", shape, why)

    def _tell(self, shape: str) -> None:
        now = self._clock()
        if now - self._told > PROGRESS_SECONDS:
            self._told = now
            _log.info("autotune: %d shapes so far, last %s", len(self._measured), shape)


def _failed(error: Exception) -> Timing:
    return Timing(failed=printable(f"{type(error).__name__}: {error}"))


def _key(candidate: Candidate) -> str:
    """An absent kernel, whose plugin is broken, serves no site and so never competes."""
    assert not isinstance(candidate.kernel, PluginError)
    return kernel_key(candidate.kernel, candidate.owner)
