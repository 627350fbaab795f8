# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Output whose reader stands still, is slow, or is gone."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import time

import pytest
from tokenspeed.process.outlet import Outlet, last_words


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


def read_all(reader, until):
    """What comes, up to a text that ends it."""
    read = b""
    deadline = time.monotonic() + 5
    while not read.endswith(until):
        assert time.monotonic() < deadline, read[-200:]
        read += what_is_there(reader)
    return read


def test_a_descriptor_that_others_made_non_blocking_loses_nothing(pipe):
    """A terminal is shared, and so are its flags: a full pipe is then an error, not a wait."""
    reader, writer = pipe
    os.set_blocking(writer, False)
    outlet = Outlet(writer)
    outlet.write(b"x" * 300_000)
    outlet.write(b"end\n")
    assert not outlet.flush(0.05)
    assert read_all(reader, b"end\n") == b"x" * 300_000 + b"end\n"
    assert outlet.flush(5)


def test_what_is_dropped_last_is_told_though_nothing_follows(pipe):
    reader, writer = pipe
    outlet = Outlet(writer, most=100_000)
    outlet.write(b"x" * 100_000)
    outlet.write(b"y" * 500)
    assert not outlet.flush(0.05)
    read = read_all(reader, b"time)\n")
    told = b"\n(500 bytes of output were dropped: nobody read them in time)\n"
    assert read == b"x" * 100_000 + told
    assert outlet.flush(5)


def test_of_more_than_there_is_room_for_the_beginning_is_kept(pipe):
    """Also of one piece that is larger than all that is kept."""
    reader, writer = pipe
    outlet = Outlet(writer, most=1000)
    outlet.write(b"first\n" + b"z" * 2000)
    read = read_all(reader, b"time)\n")
    assert read.startswith(b"first\nzzz")
    assert read.count(b"z") == 994
    assert read.endswith(b"\n(1006 bytes of output were dropped: nobody read them in time)\n")


def test_what_a_full_disk_refused_is_told_once_there_is_room(tmp_path, monkeypatch):
    full = True
    write = os.write

    def refuse(fd, content):
        if full:
            raise OSError(errno.ENOSPC, "no space left on device")
        return write(fd, content)

    monkeypatch.setattr(os, "write", refuse)
    with (tmp_path / "log").open("wb") as file:
        outlet = Outlet(file.fileno())
        outlet.write(b"lost\n")
        assert not outlet.flush(0.1)
        full = False
        outlet.write(b"kept\n")
        assert outlet.flush(5)
    told = b"(5 bytes of output were dropped: nobody read them in time)\n"
    assert (tmp_path / "log").read_bytes() == told + b"kept\n"


def test_last_words_wait_for_nobody_for_long(pipe):
    reader, writer = pipe
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    start = time.monotonic()
    last_words("the end", 0.1, writer)
    assert time.monotonic() - start < 2
    assert read_all(reader, b"the end\n")
