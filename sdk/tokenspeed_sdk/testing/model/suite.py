# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The conformance kit of contract ``model``: one line in a test file of the author.

    from tokenspeed_sdk.testing import model_conformance
    from transformers import LlamaForCausalLM

    test_model = model_conformance(EntryClass, LlamaForCausalLM)

Needs Transformers, which only tests do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import pytest

from tokenspeed_sdk.contracts.model import ModelEntry
from tokenspeed_sdk.testing.model import config, parity, weights
from tokenspeed_sdk.testing.model.oracle import TINY_CONFIG, Oracle

Check: TypeAlias = Callable[[Oracle, Path], None]
"""Takes the model under test and an empty folder. AssertionError, or what the model raised."""

CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        check.__name__.removeprefix("check_"): check
        for check in (
            config.check_architecture,
            config.check_config_errors,
            weights.check_weights_loaded_once,
            weights.check_missing_tensor,
            weights.check_unexpected_tensor,
            weights.check_misshapen_tensor,
            weights.check_tied_tensors,
            parity.check_prefill,
            parity.check_chunks,
            parity.check_decode,
            parity.check_batches,
            parity.check_reused_slot,
            parity.check_bfloat16,
        )
    }
)
"""All that a model must pass, by the name that pytest shows."""

VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gqa": {},
        "tied": {"tie_word_embeddings": True, "num_key_value_heads": 1},
        "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    }
)
"""Config fields that every decoder of the usual kind has, each once with an unusual value."""


def model_conformance(
    entry: ModelEntry,
    oracle: type[Any],
    variants: Mapping[str, Mapping[str, Any] | None] = MappingProxyType({}),
    *,
    base: Mapping[str, Any] = TINY_CONFIG,
) -> Callable[..., None]:
    """A parametrised test of a model against its Transformers class.

    Assign it to a name that starts with ``test_``. Each check is a test of its own for each config:
    ``test_model[gqa-prefill]``. Checkpoints are made with random weights in temporary folders.

    Args:
        entry: the EntryClass.
        oracle: its Transformers class, such as ``transformers.LlamaForCausalLM``.
        variants: name -> config fields that differ from ``base``, one for every switch that the
            family has; on top of VARIANTS, of which a name with None leaves one out.
        base: fields of all configs, as the class's config takes them.
    """
    wanted = {**VARIANTS, **variants}
    fields = {name: {**base, **given} for name, given in wanted.items() if given is not None}
    made: dict[str, Oracle] = {}

    def oracle_of(variant: str, folders: pytest.TempPathFactory) -> Oracle:
        if variant not in made:
            folder = folders.mktemp(variant)
            made[variant] = Oracle.make(entry, oracle, fields[variant], folder)
        return made[variant]

    @pytest.mark.parametrize("check", list(CHECKS))
    @pytest.mark.parametrize("variant", list(fields))
    def test(
        variant: str, check: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        CHECKS[check](oracle_of(variant, tmp_path_factory), tmp_path)

    return test
