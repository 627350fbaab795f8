# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which plugin holds a model's architecture. Manifests say so; nothing is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from tokenspeed.plugins.choose.suggest import ARCHITECTURE_WHEELS
from tokenspeed.plugins.choose.usable import LeftOut, Refused
from tokenspeed.plugins.errors import ListError, PluginError, WheelAbsentError
from tokenspeed.plugins.plan import Planned


def find_holder(
    provisions: Sequence[Planned],
    architectures: Sequence[str],
    refused: Sequence[Refused] = (),
    left_out: Sequence[LeftOut] = (),
) -> tuple[str, Planned]:
    """The first architecture of a config.json that a plugin claims, and the claim's holder.

    WheelAbsentError says which wheel to install; where a broken or denied plugin holds or may hold
    it, the error is about that.
    """
    claims = {claim: p for p in provisions if p.contract == "model" for claim in p.claims}
    for architecture in architectures:
        if architecture in claims:
            return architecture, claims[architecture]
    raise (
        _held_by_refused(architectures, refused)
        or _held_by_left_out(architectures, left_out)
        or _held_by_nobody(architectures)
    )


def _held_by_refused(
    architectures: Sequence[str], refused: Sequence[Refused]
) -> PluginError | None:
    """A plugin that says so counts first, then one whose manifest cannot be read."""
    offering = [r for r in refused if r.offers_any("model")]
    certain = [r for r in offering if r.plugin.claims & set(architectures)]
    unread = [r for r in offering if not r.plugin.provisions]
    for candidate, verb in [*((r, "holds") for r in certain), *((r, "may hold") for r in unread)]:
        return candidate.error.with_more(f"it {verb} architecture {_text(architectures)}")
    return None


def _held_by_left_out(
    architectures: Sequence[str], left_out: Sequence[LeftOut]
) -> PluginError | None:
    for left in left_out:
        if left.provision.contract == "model" and set(left.provision.claims) & set(architectures):
            return ListError(
                f"the plugin for architecture {_text(architectures)}, model "
                f"{left.provision.name} of {left.provision.owner}, is {left.why}",
                where="allow and deny lists",
                fix="change the list, or take another model",
            )
    return None


def _held_by_nobody(architectures: Sequence[str]) -> PluginError:
    wheels = [ARCHITECTURE_WHEELS[a] for a in architectures if a in ARCHITECTURE_WHEELS]
    return WheelAbsentError(
        f"no installed distribution provides a model for architecture {_text(architectures)}",
        where='"architectures" in the model\'s config.json',
        fix=f"pip install {wheels[0]}"
        if wheels
        else "install a plugin for it, or take a model whose architecture 'ts models list' names",
    )


def _text(architectures: Sequence[str]) -> str:
    return " or ".join(architectures) or "(config.json names none)"
