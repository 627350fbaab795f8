# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Output whose reader stands still, is slow, or is gone."""

from __future__ import annotations

import contextlib
import os
import re
import select
import time

import pytest
from tokenspeed.process.outlet import Outlet


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):  # closed by the test
            os.close(end)


def test_all_arrives_in_order(pipe):
    reader, writer = pipe
    outlet = Outlet(writer)
    for number in range(1000):
        outlet.write(b"%d\n" % number)
    assert outlet.flush(5)
    os.close(writer)
    with os.fdopen(os.dup(reader), "rb") as file:
        assert file.read() == b"".join(b"%d\n" % number for number in range(1000))


def what_is_there(reader):
    """Nothing, if nothing came within a moment: the outlet's thread may still be about to write."""
    there, _, _ = select.select([reader], [], [], 0.05)
    return os.read(reader, 1 << 20) if there else b""


def test_a_reader_that_stands_still_holds_nobody_up(pipe):
    reader, writer = pipe
    outlet = Outlet(writer, most=200_000)
    start = time.monotonic()
    for _ in range(1000):
        outlet.write(b"x" * 1000)
    assert not outlet.flush(0.05)
    assert time.monotonic() - start < 2
    read = b""
    while not outlet.flush(0):
        read += what_is_there(reader)
    outlet.write(b"later")
    assert outlet.flush(5)
    read += what_is_there(reader)
    told = rb"\n?\((\d+) bytes of output were dropped: nobody read them in time\)\n"
    dropped = sum(map(int, re.findall(told, read)))  # at once or in parts
    kept = re.sub(told, b"", read)
    assert dropped > 0
    assert kept.endswith(b"xlater")
    assert kept.count(b"x") + dropped == 1_000_000
    assert 100_000 < kept.count(b"x") <= 300_000


def test_a_reader_that_is_gone_is_not_waited_for(pipe):
    reader, writer = pipe
    os.close(reader)
    outlet = Outlet(writer)
    outlet.write(b"x" * 1000)
    assert outlet.flush(5)
