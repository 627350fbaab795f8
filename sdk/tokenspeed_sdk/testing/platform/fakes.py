# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Platforms that are not there: what selection, resolution and start-up are tested with.

verdicts(kernels(), "rms_norm@1", H100, hidden=4096)      # what each kernel says on an H100
FakePlatform("acme", H100)                                # a platform that accepts
FakePlatform("acme", verdict=NO_DEVICE)                   # one whose device is missing
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tokenspeed_sdk.contracts.kernel import CallSite, Kernel, Trait
from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE, HOST_MEMORY, Capabilities, Device
from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict

_HALF_FIRST = ("bfloat16", "float16", "float32")
_GRAPHS = frozenset({GRAPH_CAPTURE})

H100 = Capabilities("cuda", "sm_90", _HALF_FIRST, _GRAPHS, 132)
"""NVIDIA H100 and H200."""

B200 = Capabilities("cuda", "sm_100", _HALF_FIRST, _GRAPHS, 148)
"""NVIDIA B200."""

V100 = Capabilities("cuda", "sm_70", ("float16", "float32"), _GRAPHS, 80)
"""NVIDIA V100: too old for most kernels, and without bfloat16."""

MI350 = Capabilities("cuda", "gfx950", _HALF_FIRST, _GRAPHS, 256)
"""AMD MI350. Its torch device type is "cuda", as ROCm's builds of torch call it."""

CPU = Capabilities("cpu", "x86-64-v4", ("float32",), frozenset({HOST_MEMORY, "avx512"}), 2)
"""Two cores with AVX-512."""

READY = Accept(100, "a fake device")
"""The verdict of a platform whose device is there."""

NO_DEVICE = Decline("no such device in this machine")
"""The verdict of a platform whose driver or device is missing."""


@dataclass(frozen=True)
class FakePlatform:
    """A platform without hardware. Its device claims the capabilities and computes on the CPU.

    Attributes:
        capabilities: of its device.
        verdict: what its probe says.
        embedded: whether it is a default that others displace.
    """

    name: str = "fake"
    capabilities: Capabilities = CPU
    verdict: Verdict = READY
    embedded: bool = False

    def probe(self) -> Verdict:
        """The verdict that it was made with."""
        return self.verdict

    def prepare(self, threads: int | None) -> None:
        """Nothing to set."""

    def open(self, index: int = 0) -> Device:
        """A FakeDevice. RuntimeError with the reason if the probe declines."""
        if isinstance(self.verdict, Decline):
            raise RuntimeError(f"platform {self.name!r} has no device: {self.verdict.why}")
        from tokenspeed_sdk.testing.platform.fake_device import FakeDevice

        return FakeDevice(self.capabilities)


def verdicts(
    kernels: Iterable[Kernel],
    op: str,
    device: Capabilities,
    dtype: str = "bfloat16",
    *,
    rows: tuple[int, int | None] = (1, None),
    **traits: Trait,
) -> dict[str, Verdict]:
    """What each kernel of an op says about a site: name to verdict. Binds nothing."""
    site = CallSite(op, "model.layers.0", dtype, device, traits, rows=rows)
    return {kernel.name: kernel.accept(site) for kernel in kernels if kernel.op == op}


def chosen(found: dict[str, Verdict]) -> str:
    """The name with the highest score, by name among equals. LookupError names every refusal."""
    scores = {name: said.score for name, said in found.items() if isinstance(said, Accept)}
    if not scores:
        refusals = "; ".join(f"{name}: {said.why}" for name, said in found.items())
        raise LookupError(f"no kernel accepts the site: {refusals or 'there is none for this op'}")
    return min(scores, key=lambda name: (-scores[name], name))
