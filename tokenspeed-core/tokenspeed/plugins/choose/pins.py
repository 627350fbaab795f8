# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Pinned kernels exist, or the pin is refused before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenspeed_sdk.contracts.kernel import PUBLIC_OPS

from tokenspeed.plugins.choose.usable import LeftOut, Refused
from tokenspeed.plugins.discover.claims import REFERENCE
from tokenspeed.plugins.errors import ListError, PluginError, UnknownNameError, did_you_mean
from tokenspeed.plugins.plan import Planned


def check_pins(
    provisions: Sequence[Planned],
    pins: Mapping[str, str],
    refused: Sequence[Refused] = (),
    left_out: Sequence[LeftOut] = (),
) -> None:
    """The error of a broken plugin that holds a pinned kernel, or one that names the mistake."""
    kernels: dict[str, set[str]] = {op: {REFERENCE} for op in PUBLIC_OPS}
    for provision in provisions:
        if provision.contract == "kernel":
            for claim in provision.claims:
                op, _, kernel = claim.rpartition(":")
                kernels.setdefault(op, set()).add(kernel)
    for op, kernel in pins.items():
        if kernel not in kernels.get(op, ()):
            raise (
                _held_by_refused(op, kernel, refused)
                or _held_by_left_out(op, kernel, left_out)
                or _unknown(op, kernel, kernels)
            )


def _held_by_refused(op: str, kernel: str, refused: Sequence[Refused]) -> PluginError | None:
    for candidate in refused:
        if f"{op}:{kernel}" in candidate.plugin.claims:
            return candidate.error.with_more(f"it holds the pinned kernel {op}={kernel}")
    for candidate in refused:
        if candidate.offers_any("kernel") and not candidate.plugin.provisions:
            return candidate.error.with_more(f"it may hold the pinned kernel {op}={kernel}")
    return None


def _held_by_left_out(op: str, kernel: str, left_out: Sequence[LeftOut]) -> PluginError | None:
    for left in left_out:
        if f"{op}:{kernel}" in left.provision.claims:
            return ListError(
                f"kernel {kernel} of {left.provision.owner} is left out: {left.why}",
                where=f"pin {op}={kernel}",
                fix="pin another kernel, or change what leaves it out",
            )
    return None


def _unknown(op: str, kernel: str, kernels: Mapping[str, set[str]]) -> UnknownNameError:
    if op not in kernels:
        return UnknownNameError(
            f'no plugin has a kernel for op "{op}"',
            where=f"pin {op}={kernel}",
            fix=did_you_mean(op, kernels, "ts kernels explain FOLDER"),
        )
    return UnknownNameError(
        f'op {op} has no kernel "{kernel}"',
        where=f"pin {op}={kernel}",
        fix=did_you_mean(kernel, kernels[op]),
    )
