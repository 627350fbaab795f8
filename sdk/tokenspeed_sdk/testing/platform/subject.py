# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The platform that a check is about, its device, and work that keeps the device busy."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypeAlias
from unittest import mock

import torch

from tokenspeed_sdk.contracts.platform import Device, Platform, Stream

Work: TypeAlias = Callable[[], None]
"""What a stream runs."""

PlatformFactory: TypeAlias = Callable[[], Platform]
"""What an entry point in ``tokenspeed.platform`` is."""

LOAD_SECONDS = 0.3
"""How long the load keeps a stream busy, at least."""

_MATRIX = 8192
"""Rows and columns of the matrices of a load: a product takes a large GPU about a millisecond."""


class Subject:
    """A platform under test. Its device is opened when first asked for, and then kept."""

    def __init__(self, factory: PlatformFactory) -> None:
        self.factory = factory

    @cached_property
    def platform(self) -> Platform:
        return self.factory()

    @cached_property
    def device(self) -> Device:
        """Device 0, prepared and opened as the engine does, but with the environment restored."""
        with mock.patch.dict(os.environ):
            self.platform.prepare(None)
            return self.platform.open(0)

    @property
    def on_host(self) -> bool:
        """Whether torch computes on the device with the host's cores."""
        return torch.device(self.device.torch_device).type == "cpu"

    @contextmanager
    def stream(self) -> Iterator[Stream]:
        """A new stream, closed at the end."""
        stream = self.device.stream()
        try:
            yield stream
        finally:
            stream.close()

    @cached_property
    def launches(self) -> bool:
        """Whether the device has a queue of its own: ``run`` calls work now, which only launches.

        Host code that runs on the calling thread is no queue.
        """
        callers: list[int] = []
        with self.stream() as stream:
            stream.run(lambda: callers.append(threading.get_ident()))
            stream.record().wait()
        return callers == [threading.get_ident()] and not self.on_host

    @cached_property
    def load(self) -> Work:
        """Work that keeps a stream busy for LOAD_SECONDS: long products, or a nap of its thread."""
        if not self.launches:
            return lambda: time.sleep(LOAD_SECONDS)
        shape, dtype = (_MATRIX, _MATRIX), self.device.capabilities.dtypes[0]
        matrix, product = self.device.allocate(shape, dtype), self.device.allocate(shape, dtype)

        def multiply(times: int) -> None:
            for _ in range(times):
                torch.mm(matrix, matrix, out=product)

        times = 1
        with self.stream() as stream:
            _seconds(stream, work_of(multiply, 1))  # loads libraries
            while _seconds(stream, work_of(multiply, times)) < LOAD_SECONDS:
                times *= 2
        return work_of(multiply, times)

    def read(self, stream: Stream, tensor: torch.Tensor) -> torch.Tensor:
        """What a tensor holds behind all work of a stream, in host memory."""
        found = self.device.host_buffer(tuple(tensor.shape), str(tensor.dtype).split(".")[1])
        stream.run(work_of(found.copy_, tensor, non_blocking=True))
        stream.record().wait()
        return found


def raised_by(call: Callable[[], object]) -> Exception | None:
    """What a call raises; None if nothing."""
    try:
        call()
    except Exception as error:
        return error
    return None


def work_of(call: Callable[..., object], *arguments: object, **options: object) -> Work:
    """Work for a stream: the call, whose result nobody reads."""

    def work() -> None:
        call(*arguments, **options)

    return work


def _seconds(stream: Stream, work: Work) -> float:
    begin = time.perf_counter()
    stream.run(work)
    stream.record().wait()
    return time.perf_counter() - begin
