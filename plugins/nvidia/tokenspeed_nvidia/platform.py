# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The platform ``nvidia``. Light: torch is imported when a device is opened."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict

from tokenspeed_nvidia.nvml import NvmlError, hides_all, list_gpus

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.platform import Device

OLDEST = (8, 0)
"""First compute capability with bf16 matrix instructions and asynchronous copies."""


class NvidiaPlatform:
    """NVIDIA GPUs through CUDA."""

    name = "nvidia"
    embedded = False

    def probe(self) -> Verdict:
        """Whether a GPU is here that the kernels are written for."""
        try:
            gpus = list_gpus()
        except NvmlError as error:
            return Decline(str(error))
        if not gpus:
            return Decline("the NVIDIA driver is loaded but finds no GPU")
        if hides_all():
            return Decline("CUDA_VISIBLE_DEVICES hides every GPU; unset it")
        first = gpus[0]
        if (first.major, first.minor) < OLDEST:
            return Decline(f"{first.name} is {first.arch}; the kernels need sm_80 or newer")
        more = f" x {len(gpus)}" if len(gpus) > 1 else ""
        return Accept(100, f"{first.name}{more}, {first.arch}")

    def prepare(self, threads: int | None) -> None:
        """Number devices as the driver's tools do; host threads only matter to torch's host ops."""
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        if threads is not None:
            os.environ.setdefault("OMP_NUM_THREADS", str(threads))

    def open(self, index: int = 0) -> Device:
        """Open GPU ``index``. RuntimeError says what is missing and what to do."""
        from tokenspeed_nvidia.device import CudaDevice

        return CudaDevice(index)
