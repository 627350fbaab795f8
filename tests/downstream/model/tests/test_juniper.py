# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Juniper against the Transformers class of its authors."""

from __future__ import annotations

import sys
from pathlib import Path

from juniper.model import EntryClass
from tokenspeed_sdk.testing import TINY_CONFIG, model_conformance

sys.path.insert(0, str(Path(__file__).parent))

from oracle import JuniperForCausalLM

test_juniper = model_conformance(
    EntryClass,
    JuniperForCausalLM,
    {
        "gqa": None,
        "theta": None,
        "tied": {"tie_word_embeddings": True, "residual_multiplier": 0.25, "rms_norm_eps": 0.1},
    },
    base={**TINY_CONFIG, "embedding_multiplier": 3.0, "rope_parameters": {"rope_theta": 500.0}},
)
