# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What tests of plugins are written with."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenspeed_sdk.testing.drafter.model_suite import draft_model_conformance
    from tokenspeed_sdk.testing.drafter.suite import drafter_conformance
    from tokenspeed_sdk.testing.grammar.suite import grammar_conformance
    from tokenspeed_sdk.testing.kernel.cases import LARGE, TINY, USUAL, Call, Case, Grid, Inputs
    from tokenspeed_sdk.testing.kernel.check import Report, check_kernel
    from tokenspeed_sdk.testing.kernel.suite import kernel_conformance
    from tokenspeed_sdk.testing.model.byte_tokenizer import save_byte_tokenizer
    from tokenspeed_sdk.testing.model.oracle import TINY_CONFIG, save_tiny_checkpoint
    from tokenspeed_sdk.testing.model.suite import model_conformance
    from tokenspeed_sdk.testing.observer.suite import observer_conformance
    from tokenspeed_sdk.testing.platform.fakes import (
        B200,
        CPU,
        H100,
        MI350,
        NO_DEVICE,
        V100,
        FakePlatform,
        chosen,
        verdicts,
    )
    from tokenspeed_sdk.testing.platform.suite import platform_conformance

__all__ = [
    "B200",
    "CPU",
    "H100",
    "LARGE",
    "MI350",
    "NO_DEVICE",
    "TINY",
    "TINY_CONFIG",
    "USUAL",
    "V100",
    "Call",
    "Case",
    "FakePlatform",
    "Grid",
    "Inputs",
    "Report",
    "check_kernel",
    "chosen",
    "draft_model_conformance",
    "drafter_conformance",
    "grammar_conformance",
    "kernel_conformance",
    "model_conformance",
    "observer_conformance",
    "platform_conformance",
    "save_byte_tokenizer",
    "save_tiny_checkpoint",
    "verdicts",
]

_MODULES = {
    "draft_model_conformance": "drafter.model_suite",
    "drafter_conformance": "drafter.suite",
    "grammar_conformance": "grammar.suite",
    "save_byte_tokenizer": "model.byte_tokenizer",
    "LARGE": "kernel.cases",
    "TINY": "kernel.cases",
    "USUAL": "kernel.cases",
    "Call": "kernel.cases",
    "Case": "kernel.cases",
    "Grid": "kernel.cases",
    "Inputs": "kernel.cases",
    "kernel_conformance": "kernel.suite",
    "Report": "kernel.check",
    "check_kernel": "kernel.check",
    "TINY_CONFIG": "model.oracle",
    "save_tiny_checkpoint": "model.oracle",
    "model_conformance": "model.suite",
    "observer_conformance": "observer.suite",
    "platform_conformance": "platform.suite",
    "B200": "platform.fakes",
    "CPU": "platform.fakes",
    "H100": "platform.fakes",
    "MI350": "platform.fakes",
    "NO_DEVICE": "platform.fakes",
    "V100": "platform.fakes",
    "FakePlatform": "platform.fakes",
    "chosen": "platform.fakes",
    "verdicts": "platform.fakes",
}


def __getattr__(name: str) -> Any:
    """Imported when first asked for: each part of the kit needs other packages."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
