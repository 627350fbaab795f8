# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Tensors in huge pages.

A decode step reads every weight and every cached token once. In pages of 4 KiB that walk misses the
translation cache at each page: attention over pages in random order ran a quarter slower so.
"""

from __future__ import annotations

import contextlib
import math
import mmap

import torch

HUGE = 2 << 20

OURS_ALONE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
"""What may be shared, which is the default, is backed by shmem: most systems give that no huge
pages, whatever is advised."""


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A zeroed tensor at a 2 MiB boundary; the kernel backs it when it is touched.

    Raises:
        MemoryError: there is not that much address space; says how much was asked for.
    """
    count = math.prod(shape)
    try:
        memory = mmap.mmap(-1, count * dtype.itemsize + HUGE, flags=OURS_ALONE)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no {count * dtype.itemsize} bytes of memory: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them serves ordinary pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE
    return whole[start : start + count * dtype.itemsize].view(dtype).view(shape)
