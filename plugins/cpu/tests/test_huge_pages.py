# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""That large tensors may lie in huge pages, where the system has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenspeed_cpu import huge_pages

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def smaps_of(address: int) -> dict[str, str]:
    """What the kernel says of the mapping around an address: "Rss" -> "8192 kB"."""
    inside = False
    found: dict[str, str] = {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(" ")
        if not name.endswith(":"):
            low, high = (int(end, 16) for end in name.split("-"))
            inside = low <= address < high
            found |= {"path": value} if inside else {}
        elif inside:
            found[name[:-1]] = value.strip()
    return found


def test_the_memory_is_no_other_process_s() -> None:
    """Shared memory gets huge pages by a switch of its own, which is off on most systems."""
    tensor = huge_pages.zeros((4, huge_pages.HUGE), torch.uint8)
    assert tensor.data_ptr() % huge_pages.HUGE == 0
    assert tensor.eq(0).all()
    assert "s" not in smaps_of(tensor.data_ptr())["path"].split()[0]


def test_the_memory_may_be_huge_pages() -> None:
    if not ENABLED.is_file() or "[never]" in ENABLED.read_text():
        pytest.skip("this system gives no huge pages")
    tensor = huge_pages.zeros((8, huge_pages.HUGE), torch.uint8)
    smaps = smaps_of(tensor.data_ptr())
    assert "hg" in smaps["VmFlags"].split()
    assert smaps.get("THPeligible", "1") == "1"
