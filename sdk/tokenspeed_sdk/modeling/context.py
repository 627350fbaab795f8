# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a model is told while it is built."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tokenspeed_sdk.contracts.kernel import (
    Binding,
    CallSite,
    FusingResolver,
    KernelResolver,
    Trait,
)
from tokenspeed_sdk.contracts.platform import Capabilities
from tokenspeed_sdk.modeling.quantization import FP8_KV, QUANTIZATIONS


@dataclass(frozen=True)
class Mesh:
    """The parallel group that a model is spread over. Size 1: everything is local."""

    size: int = 1
    rank: int = 0


@dataclass(frozen=True)
class BuildContext:
    """The device, the dtype, and whom to ask for kernels.

    Attributes:
        kernels: resolver that every layer asks once per call site.
        device: capabilities of the device.
        torch_device: where parameters are created.
        dtype: dtype of parameters and activations, such as "float32".
        max_model_len: longest sequence that will be served, in tokens.
        page_size: tokens per KV page; the caches of every batch have it.
        quantization: format of the weights of linears: "fp8", "int8", or None for ``dtype``.
            Embeddings stay in ``dtype``, and with "fp8" the head.
        kv_dtype: dtype of the caches: "float8_e4m3fn", or None for ``dtype``.
        row_tokens: most tokens of a decode row: one, and guesses that are verified.
        taps: layers whose input the model shows to a drafter; see ``TappedModel``.
    """

    kernels: KernelResolver
    device: Capabilities
    torch_device: str
    dtype: str
    max_model_len: int
    page_size: int
    mesh: Mesh = field(default_factory=Mesh)
    role: str = "main"
    quantization: str | None = None
    kv_dtype: str | None = None
    row_tokens: int = 1
    taps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """ValueError: a format that no layer knows."""
        formats = (
            ("quantization", self.quantization, QUANTIZATIONS),
            ("kv_dtype", self.kv_dtype, (FP8_KV,)),
        )
        for name, value, known in formats:
            if value is not None and value not in known:
                listed = ", ".join(map(repr, known))
                raise ValueError(f"{name} must be {listed} or None; got {value!r}")

    @property
    def cache_dtype(self) -> str:
        """Dtype of the caches, by name."""
        return self.kv_dtype or self.dtype

    def bind(self, op: str, layer: str, **traits: Trait) -> Binding:
        """The kernel for one call site."""
        site = CallSite(op, layer, self.dtype, self.device, traits, self.role)
        return self.kernels.bind(site)

    def bind_fused(
        self,
        op: str,
        layer: str,
        parts: Collection[str],
        traits: Mapping[str, Trait],
        rows: tuple[int, int | None] = (1, None),
    ) -> Binding | None:
        """The kernel for a site that does the work of the ops ``parts``; None: call those."""
        if not isinstance(self.kernels, FusingResolver):
            return None
        site = CallSite(op, layer, self.dtype, self.device, traits, self.role, rows)
        return self.kernels.bind_fused(site, parts)
