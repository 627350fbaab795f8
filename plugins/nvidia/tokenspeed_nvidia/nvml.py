# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the NVIDIA management library says about the GPUs here: no context, no torch, a few ms."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

_NAME_BYTES = 96


class NvmlError(RuntimeError):
    """Why the GPUs of this machine cannot be read."""


@dataclass(frozen=True)
class Gpu:
    """One GPU: its product name and compute capability."""

    name: str
    major: int
    minor: int

    @property
    def arch(self) -> str:
        return f"sm_{self.major}{self.minor}"


def list_gpus() -> list[Gpu]:
    """The GPUs of this machine in PCI order.

    Raises:
        NvmlError: no driver, or none that answers.
    """
    _load("libcuda.so.1")
    nvml = _load("libnvidia-ml.so.1")
    _check(nvml, nvml.nvmlInit_v2(), "nvmlInit_v2")
    try:
        count = ctypes.c_uint()
        _check(nvml, nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount_v2")
        return [_read(nvml, index) for index in range(count.value)]
    finally:
        nvml.nvmlShutdown()


def driver_version() -> str:
    """Such as "580.65.06"; "" where the library does not say."""
    try:
        nvml = _load("libnvidia-ml.so.1")
        _check(nvml, nvml.nvmlInit_v2(), "nvmlInit_v2")
        text = ctypes.create_string_buffer(_NAME_BYTES)
        try:
            status = nvml.nvmlSystemGetDriverVersion(text, _NAME_BYTES)
            _check(nvml, status, "nvmlSystemGetDriverVersion")
        finally:
            nvml.nvmlShutdown()
    except NvmlError:
        return ""
    return text.value.decode(errors="replace")


def hides_all() -> bool:
    """Whether CUDA_VISIBLE_DEVICES leaves this process without a GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and visible.split(",")[0].strip() in ("", "-1", "NoDevFiles")


def _read(nvml: ctypes.CDLL, index: int) -> Gpu:
    handle = ctypes.c_void_p()
    get = nvml.nvmlDeviceGetHandleByIndex_v2
    _check(nvml, get(ctypes.c_uint(index), ctypes.byref(handle)), "nvmlDeviceGetHandleByIndex_v2")
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _check(nvml, nvml.nvmlDeviceGetName(handle, name, _NAME_BYTES), "nvmlDeviceGetName")
    major, minor = ctypes.c_int(), ctypes.c_int()
    capability = nvml.nvmlDeviceGetCudaComputeCapability
    status = capability(handle, ctypes.byref(major), ctypes.byref(minor))
    _check(nvml, status, "nvmlDeviceGetCudaComputeCapability")
    return Gpu(name.value.decode(errors="replace"), major.value, minor.value)


def _load(library: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(library)
    except OSError as error:
        raise NvmlError(f"no NVIDIA driver: {error}") from error


def _check(nvml: ctypes.CDLL, status: int, call: str) -> None:
    if status:
        nvml.nvmlErrorString.restype = ctypes.c_char_p
        text = nvml.nvmlErrorString(status)
        raise NvmlError(f"the NVIDIA driver does not answer: {call}: {text.decode()}")
