# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Layers, placements, weights: what a model file is written in."""

from tokenspeed_sdk.modeling.batch import CacheView, ForwardBatch
from tokenspeed_sdk.modeling.causal_lm import CausalLM
from tokenspeed_sdk.modeling.config import ConfigReader
from tokenspeed_sdk.modeling.context import BuildContext, Mesh
from tokenspeed_sdk.modeling.dummy import load_dummy
from tokenspeed_sdk.modeling.graph import Graph, Step
from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.loader import LoadReport, load_weights
from tokenspeed_sdk.modeling.quantization import FP8, FP8_KV, INT8, QUANTIZATIONS, read_quantization
from tokenspeed_sdk.modeling.rope import RopeConfig, read_rope
from tokenspeed_sdk.modeling.weight_formats import WEIGHT_FORMATS
from tokenspeed_sdk.modeling.weights import WeightError, WeightMap

__all__ = [
    "FP8",
    "FP8_KV",
    "INT8",
    "QUANTIZATIONS",
    "WEIGHT_FORMATS",
    "BuildContext",
    "CacheView",
    "CausalLM",
    "ConfigReader",
    "ForwardBatch",
    "Graph",
    "Layer",
    "LoadReport",
    "Mesh",
    "RopeConfig",
    "Step",
    "WeightError",
    "WeightMap",
    "load_dummy",
    "load_weights",
    "read_quantization",
    "read_rope",
]
