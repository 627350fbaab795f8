# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""``--check-kernels``: the kernel that is at fault is named, not the one that runs after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import ScriptedMailbox, all_at_once, submit
from tokenspeed.bench.engine import launch_plan
from tokenspeed.config import EngineConfig
from tokenspeed.engine.start import build_engine
from tokenspeed.plugins.errors import BrokenPromiseError
from tokenspeed.registry.candidates import Reference
from tokenspeed_cpu.platform import CpuPlatform
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite

OP = "silu_and_mul@1"


def turning(is_bad: list[bool]) -> Callable[[Reference, CallSite], BoundKernel]:
    """The references, of which one returns another dtype as soon as the list is not empty."""

    def bind(kernel: Reference, site: CallSite) -> BoundKernel:
        call = kernel._op.bind_reference(site)
        if site.op != OP:
            return call

        def run(*args: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = call(*args)
            return result.double() if is_bad else result

        return run

    return bind


@pytest.mark.rule("R6")
@pytest.mark.parametrize("check", [True, False])
def test_a_kernel_that_turns_bad_later(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, check: bool
) -> None:
    is_bad: list[bool] = []
    monkeypatch.setattr(Reference, "bind", turning(is_bad))
    config = EngineConfig(
        model=str(tiny_llama),
        platform="cpu",
        threads=1,
        dtype="float32",
        pins={OP: "reference"},
        check_kernels=check,
    )
    mailbox = ScriptedMailbox(all_at_once([submit(1, [5, 6, 7], 7)]))
    with launch_plan(config) as plan:
        executor, loop = build_engine(plan, CpuPlatform(), mailbox)  # type: ignore[arg-type]
        is_bad.append(True)
        with pytest.raises(Exception) as caught:  # noqa: PT011  # whatever the next kernel raises
            loop.run()
        executor.close()
    if check:
        assert isinstance(caught.value, BrokenPromiseError)
        assert f"kernel reference of tokenspeed-sdk for {OP}" in caught.value.where
    else:
        note = caught.value.__notes__[0]
        assert "for linear@1 at" in note
        assert "or the kernel that made its arguments" in note
        assert "of float64" in note
