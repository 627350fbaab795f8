# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Kernels of the public ops for float32 on the CPU.

Most are the library's, through the sdk's native border; what torch computes is Python.
"""

from __future__ import annotations

from tokenspeed_sdk.contracts.kernel import Kernel


def kernels() -> tuple[Kernel, ...]:
    """All kernels of this plugin. LibraryError: the library is missing or does not fit."""
    from tokenspeed_sdk.native.kernel import load_kernels

    from tokenspeed_cpu import library
    from tokenspeed_cpu.kernels.linear_torch import OnednnLinear, TorchLinear
    from tokenspeed_cpu.kernels.packing import PanelKernel
    from tokenspeed_cpu.kernels.page_table import PageTableUpdate

    native = load_kernels(library.load())
    return (
        *(PanelKernel(kernel) if kernel.packs else kernel for kernel in native),
        OnednnLinear(),
        TorchLinear(),
        PageTableUpdate(),
    )
