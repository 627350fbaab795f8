# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The formats that weights, activations and KV of an engine have: as asked for, or the model's."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed_sdk.modeling import FP8_KV, read_quantization

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed_sdk.contracts.platform import Capabilities
    from tokenspeed_sdk.modeling import LoadReport

    from tokenspeed.config import EngineConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Formats:
    """As a BuildContext takes them.

    Attributes:
        dtype: of activations, and of weights that are not quantised.
        quantization: of the weights of linears; None for ``dtype``.
        kv_dtype: of keys and values; None for ``dtype``.
    """

    dtype: str
    quantization: str | None
    kv_dtype: str | None

    @classmethod
    def choose(
        cls, config: EngineConfig, model: Mapping[str, Any], device: Capabilities
    ) -> Formats:
        """What the options say, the checkpoint and the device.

        Args:
            model: the parsed config.json.

        Raises:
            ValueError: the device does not compute in what is asked for, or the checkpoint is
                quantised in a way that no layer knows.
        """
        return cls(
            _dtype(config, device),
            _quantization(config, model),
            FP8_KV if config.kv_cache_dtype == "fp8" else None,
        )

    def __str__(self) -> str:
        linears = f", linears in {self.quantization}" if self.quantization else ""
        return f"{self.dtype}{linears}, KV in {self.kv_dtype or self.dtype}"


def warn_of_default_scales(report: LoadReport, model: str) -> None:
    """One line if a checkpoint lacks scales of KV: whoever serves it should know."""
    if report.defaulted:
        _log.warning(
            "%s has no scale for %d keys and values of its layers, such as %s: 1 is used, so that "
            "what lies beyond +-448 is cut off; take a checkpoint with k_scale and v_scale, or "
            "leave --kv-cache-dtype fp8 out",
            model,
            len(report.defaulted),
            report.defaulted[0],
        )


def _quantization(config: EngineConfig, model: Mapping[str, Any]) -> str | None:
    stored = read_quantization(model)
    if stored and config.quantization not in (None, stored):
        raise ValueError(
            f"--quantization {config.quantization} needs floating weights; the checkpoint's are "
            f"{stored} already: leave --quantization out"
        )
    return config.quantization or stored


def _dtype(config: EngineConfig, device: Capabilities) -> str:
    offered = device.dtypes
    if config.dtype == "auto":
        return offered[0]
    if config.dtype not in offered:
        raise ValueError(
            f"--dtype {config.dtype} is not among what the device computes in: "
            f"{', '.join(offered)}; choose one of these"
        )
    return config.dtype
