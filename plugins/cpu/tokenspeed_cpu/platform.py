# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The platform: light, no torch at import."""

from __future__ import annotations

import logging
import os
import sys

from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.contracts.probe import Accept, Verdict
from tokenspeed_sdk.native import LibraryError

from tokenspeed_cpu import library
from tokenspeed_cpu.cores import default_threads, usable_cores

logger = logging.getLogger(__name__)

SCORE = 1

# Active waiting burns the core that the engine's loop needs: on a busy machine it made a step of
# 37 ms one of 968 ms.
PASSIVE = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}


class CpuPlatform:
    """The CPU that every machine has."""

    name = "cpu"
    embedded = True

    def __init__(self) -> None:
        self._threads: int | None = None

    def probe(self) -> Verdict:
        """Always fit: what would be missing is said by ``open``."""
        cores = usable_cores()
        try:
            arch = library.arch()
        except LibraryError as error:
            arch = f"no kernels: {error}"
        return Accept(SCORE, f"{arch}, {cores} core{'s' if cores > 1 else ''}")

    def prepare(self, threads: int | None) -> None:
        """Set what torch's OpenMP reads at import. None: all usable cores but one.

        With torch already imported this comes too late for OpenMP: it is logged, and ``open`` still
        sets the number of threads.

        Raises:
            ValueError: fewer than one thread.
        """
        if threads is not None and threads < 1:
            raise ValueError(f"the CPU needs at least 1 thread; got {threads}")
        self._threads = threads or default_threads()
        count = str(self._threads)
        wanted = {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, **PASSIVE}
        if "torch" in sys.modules and os.environ.get("OMP_WAIT_POLICY") != "passive":
            logger.warning(
                "torch was imported before the CPU platform was prepared: its idle threads may "
                "spin; set OMP_WAIT_POLICY=passive in the environment"
            )
        os.environ.update(wanted)

    def open(self, index: int = 0) -> Device:
        """The CPU. RuntimeError: another index than 0, or no kernels for this machine."""
        from tokenspeed_cpu.device import CpuDevice

        if index != 0:
            raise RuntimeError(f"there is one CPU device, index 0; got {index}")
        return CpuDevice(self._threads or default_threads())
