# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The call sites of a step outside the model: one function binds them, whoever asks."""

from __future__ import annotations

from dataclasses import dataclass

from tokenspeed_sdk.contracts.kernel import BoundKernel
from tokenspeed_sdk.modeling.context import BuildContext


@dataclass(frozen=True)
class StepKernels:
    """Between page-table deltas and sampled tokens.

    Attributes:
        adjust_logits_verify: None where no step verifies guesses, or no kernel is for those.
    """

    update_page_tables: BoundKernel
    gather_rows: BoundKernel
    adjust_logits: BoundKernel
    adjust_logits_verify: BoundKernel | None
    sample: BoundKernel
    mask_logits: BoundKernel
    record_tokens: BoundKernel
    logprobs: BoundKernel


def bind_step_kernels(context: BuildContext, vocab_size: int) -> StepKernels:
    """LookupError: no kernel serves one of them."""
    adjust, verify = "adjust_logits@1", None
    if context.row_tokens > 1:
        verify = context.bind_fused(
            "adjust_logits_verify@1", "sampler.adjust_logits", (adjust,), {"vocab": vocab_size}
        )
    return StepKernels(
        update_page_tables=context.bind("page_table_update@1", "executor.page_tables").call,
        gather_rows=context.bind("gather_rows@1", "sampler.gather_rows").call,
        adjust_logits=context.bind(adjust, "sampler.adjust_logits", vocab=vocab_size).call,
        adjust_logits_verify=None if verify is None else verify.call,
        sample=context.bind("sample@1", "sampler.sample", vocab=vocab_size).call,
        mask_logits=context.bind("mask_logits@1", "sampler.mask", vocab=vocab_size).call,
        record_tokens=context.bind(
            "record_tokens@1", "sampler.record_tokens", vocab=vocab_size
        ).call,
        logprobs=context.bind("logprobs@1", "sampler.logprobs", vocab=vocab_size).call,
    )
