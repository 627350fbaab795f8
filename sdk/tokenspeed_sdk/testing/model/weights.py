# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Checks of a model's weight map: every tensor of a checkpoint is accounted for, by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tokenspeed_sdk.modeling.loader import LoadReport, load_weights
from tokenspeed_sdk.modeling.weights import WeightError, WeightMap
from tokenspeed_sdk.testing.model.oracle import WEIGHTS_FILE, Oracle
from tokenspeed_sdk.testing.model.runner import plain_context


def check_weights_loaded_once(oracle: Oracle, scratch: Path) -> None:
    """Every tensor fills its own part of a parameter, and every element is filled."""
    weights = _weight_map(oracle)
    for parameter in weights.parameters.values():
        parameter.fill_(torch.nan)
    report = load_weights(weights, oracle.folder)
    tensors = _tensors(oracle)
    twice = sorted({name for name in report.loaded if report.loaded.count(name) > 1})
    assert not twice, f"loaded more than once: {twice}"
    unused = sorted(tensors.keys() - set(report.loaded))
    assert not unused, (
        f"Transformers saves these tensors and the model ignores them: {unused}; "
        "map them, or narrow ignored_weights"
    )
    unfilled = [n for n, p in weights.parameters.items() if bool(p.isnan().any())]
    assert not unfilled, f"parameters with elements that no tensor fills: {unfilled}"
    loaded = sum(tensors[name].numel() for name in report.loaded)
    held = sum(parameter.numel() for parameter in weights.parameters.values())
    assert loaded == held, f"{loaded} elements were loaded into parameters of {held}"


def check_missing_tensor(oracle: Oracle, scratch: Path) -> None:
    """Each tensor in turn is left out: the error names it."""
    for name, _ in (tensors := _tensors(oracle)).items():
        rest = {other: tensor for other, tensor in tensors.items() if other != name}
        _refused(oracle, rest, scratch, f"without {name}", f"lacks {name}")


def check_unexpected_tensor(oracle: Oracle, scratch: Path) -> None:
    """A tensor that the model has no place for is named, not ignored."""
    tensors = _tensors(oracle)
    for name in ("model.unexpected.weight", *(f"{name}_unexpected" for name in tensors)):
        extra = {**tensors, name: torch.ones(3)}
        _refused(oracle, extra, scratch, f"with the unknown tensor {name}", name)


def check_misshapen_tensor(oracle: Oracle, scratch: Path) -> None:
    """Each tensor in turn has one row more: the error names it and both shapes."""
    tensors = _tensors(oracle)
    for name, tensor in tensors.items():
        longer = torch.cat((tensor, tensor[:1]))
        told = f"{name} is {list(longer.shape)} in the checkpoint, {list(tensor.shape)}"
        _refused(oracle, {**tensors, name: longer}, scratch, f"with one row more of {name}", told)


def check_tied_tensors(oracle: Oracle, scratch: Path) -> None:
    """What Transformers ties is tied, under either name; two contents are refused; no more is."""
    found, wanted = _weight_map(oracle).ties, oracle.ties
    assert found.keys() == wanted.keys(), (
        f"the model ties {sorted(found)}, Transformers ties {sorted(wanted)}, with "
        f"tie_word_embeddings {oracle.config.get('tie_word_embeddings')}"
    )
    tensors = _tensors(oracle)
    for name, to in wanted.items():
        first = name if name in tensors else to
        other = to if first == name else name
        renamed = {other if n == first else n: tensor for n, tensor in tensors.items()}
        _load(oracle, renamed, scratch)
        _load(oracle, {**renamed, first: tensors[first].clone()}, scratch)
        differing = {**tensors, other: tensors[first] + 1}
        _refused(oracle, differing, scratch, f"with another content of {name}", name, to)


def _weight_map(oracle: Oracle) -> WeightMap:
    config = oracle.entry.read_config(oracle.config)
    return oracle.entry.build(config, plain_context()).weight_map()


def _tensors(oracle: Oracle) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(oracle.folder / WEIGHTS_FILE)
    return tensors


def _load(oracle: Oracle, tensors: Mapping[str, torch.Tensor], scratch: Path) -> LoadReport:
    save_file(dict(tensors), scratch / WEIGHTS_FILE)
    return load_weights(_weight_map(oracle), scratch)


def _refused(
    oracle: Oracle, tensors: Mapping[str, torch.Tensor], scratch: Path, what: str, *told: str
) -> None:
    """AssertionError: these tensors load, or the error does not say all of ``told``."""
    said = _refusal(oracle, tensors, scratch)
    assert said is not None, f"a checkpoint {what} loads; the weight map must not hide that"
    lacking = [part for part in told if part not in said]
    assert not lacking, f"a checkpoint {what}: the error does not say {lacking}: {said}"


def _refusal(oracle: Oracle, tensors: Mapping[str, torch.Tensor], scratch: Path) -> str | None:
    try:
        _load(oracle, tensors, scratch)
    except WeightError as error:
        return str(error)
    return None
