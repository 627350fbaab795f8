# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Kernels of the public ops for float32 on the CPU. One file per group of ops."""

from __future__ import annotations

from tokenspeed_sdk.contracts.kernel import Kernel


def kernels() -> tuple[Kernel, ...]:
    """All kernels of this plugin, best first among those of one op."""
    from tokenspeed_cpu.kernels.attention import AttentionDecode, AttentionPrefill
    from tokenspeed_cpu.kernels.kv_write import KvWrite
    from tokenspeed_cpu.kernels.linear import Linear
    from tokenspeed_cpu.kernels.linear_torch import OnednnLinear, TorchLinear
    from tokenspeed_cpu.kernels.norm import AddRmsNorm, RmsNorm
    from tokenspeed_cpu.kernels.page_table import PageTableUpdate
    from tokenspeed_cpu.kernels.rope import Rope
    from tokenspeed_cpu.kernels.rows import Embedding, GatherRows, SiluAndMul
    from tokenspeed_cpu.kernels.sample import Sample

    return (
        Embedding(),
        Linear(),
        OnednnLinear(),
        TorchLinear(),
        RmsNorm(),
        AddRmsNorm(),
        Rope(),
        KvWrite(),
        AttentionPrefill(),
        AttentionDecode(),
        SiluAndMul(),
        GatherRows(),
        Sample(),
        PageTableUpdate(),
    )
