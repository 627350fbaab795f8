# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Fill the parameters of a model from a checkpoint, and account for every one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from tokenspeed_sdk.modeling.checkpoint import FLOAT_BYTES, INTEGER_BYTES, Checkpoint
from tokenspeed_sdk.modeling.coded import coded_parts, fill_codes, misfits, scale_names
from tokenspeed_sdk.modeling.weights import WeightError, WeightMap

Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes done and bytes total."""

SHOWN = 8
"""Names of one kind that an error lists; the rest are counted."""


@dataclass(frozen=True)
class LoadReport:
    """What happened to each name.

    Attributes:
        loaded: checkpoint tensors that were copied.
        tied: tied name -> the tensor that it shares.
        ignored: checkpoint tensors that the model lists as not needed.
        bytes: bytes read from the files.
        defaulted: parameters that keep their value, because the checkpoint has none for them.
    """

    loaded: tuple[str, ...]
    tied: dict[str, str]
    ignored: tuple[str, ...]
    bytes: int
    defaulted: tuple[str, ...] = ()


def load_weights(
    weights: WeightMap, folder: str | Path, progress: Progress | None = None
) -> LoadReport:
    """Copy a checkpoint into the parameters of ``weights``, converted to their dtype and device.

    All names and shapes are checked before the first byte is copied.

    Raises:
        WeightError: a parameter that nothing fills, a tensor that nothing takes, another shape or a
            dtype that is not floating, tied tensors that differ, or files that cannot be read. It
            names every such tensor.
    """
    with Checkpoint(folder) as checkpoint:
        origin = _origins(weights, checkpoint)
        ignored = tuple(name for name in checkpoint.entries if weights.ignores(name))
        coded = coded_parts(weights, origin)
        _check(weights, checkpoint, origin, coded, ignored)
        loaded = (*origin.values(), *scale_names(checkpoint, coded.values()))
        tell = _Told(checkpoint, loaded, progress)
        for target, source in origin.items():
            if weights.slices[target].parameter not in coded:
                weights.target(target).copy_(checkpoint.read(source))
                tell([source])
        for parameter, sources in coded.items():
            fill_codes(weights, checkpoint, parameter, sources)
            tell([*sources, *scale_names(checkpoint, [sources])])
        _check_ties(weights, checkpoint, origin)
        _check_positive(weights, origin)
    defaulted = tuple(name for name in weights.defaults if name not in origin)
    for name in defaulted:
        weights.parameters[name].fill_(weights.defaults[name])
    return LoadReport(loaded, dict(weights.ties), ignored, tell.total, defaulted)


class _Told:
    """Counts the bytes of tensors that are read, for whoever wants to hear."""

    def __init__(
        self, checkpoint: Checkpoint, names: Iterable[str], progress: Progress | None
    ) -> None:
        self._entries = checkpoint.entries
        self._progress = progress
        self._done = 0
        self.total = sum(self._entries[name].bytes for name in names)

    def __call__(self, names: Iterable[str]) -> None:
        self._done += sum(self._entries[name].bytes for name in names)
        if self._progress is not None:
            self._progress(self._done, self.total)


def _origins(weights: WeightMap, checkpoint: Checkpoint) -> dict[str, str]:
    """Mapped name -> the tensor that fills it, in the order of the files.

    A checkpoint may have kept either name of a tied tensor.
    """
    origin = {name: name for name in weights.slices if name in checkpoint.entries}
    for name, to in weights.ties.items():
        if to not in origin and to in weights.slices and name in checkpoint.entries:
            origin[to] = name
    entries = checkpoint.entries
    return dict(sorted(origin.items(), key=lambda item: (entries[item[1]].file, item[1])))


def _check(
    weights: WeightMap,
    checkpoint: Checkpoint,
    origin: dict[str, str],
    coded: dict[str, list[str]],
    ignored: tuple[str, ...],
) -> None:
    scales = scale_names(checkpoint, coded.values())
    known = weights.slices.keys() | weights.ties.keys() | {*ignored, *scales}
    filled = origin.keys() | weights.defaults.keys()
    missing = (_fills(weights, name) for name in weights.slices if name not in filled)
    unexpected = (name for name in checkpoint.entries if name not in known)
    problems = [
        *_problem("the checkpoint lacks", missing),
        *_problem("the model has no use for", unexpected),
        *_problem("shapes differ:", _misshapen(weights, checkpoint, origin)),
        *_problem("dtypes cannot be converted:", _inconvertible(weights, checkpoint, origin)),
        *_problem("eight-bit weights cannot be used:", misfits(weights, checkpoint, coded)),
    ]
    if problems:
        raise WeightError(
            f"checkpoint {checkpoint.folder} does not fit the model: "
            + "; ".join(problems)
            + "; check that config.json and weights belong together"
        )


def _fills(weights: WeightMap, name: str) -> str:
    parameter = weights.slices[name].parameter
    return name if parameter == name else f"{name} (part of {parameter})"


def _misshapen(weights: WeightMap, checkpoint: Checkpoint, origin: dict[str, str]) -> Iterable[str]:
    for target, source in origin.items():
        wanted, found = tuple(weights.target(target).shape), checkpoint.entries[source].shape
        if wanted != found and (wanted, found) != ((1,), ()):  # one number, written without a shape
            yield f"{source} is {list(found)} in the checkpoint, {list(wanted)} in the model"


def _inconvertible(
    weights: WeightMap, checkpoint: Checkpoint, origin: dict[str, str]
) -> Iterable[str]:
    for target, source in origin.items():
        dtype = checkpoint.entries[source].dtype
        format = weights.formats.get(weights.slices[target].parameter)
        coded = format is not None and dtype == format.stored
        table = weights.target(target).dtype == torch.int64
        known = INTEGER_BYTES if table else FLOAT_BYTES
        if dtype not in known and not coded:
            yield f"{source} is {dtype}, not one of {', '.join(known)}"


def _problem(title: str, names: Iterable[str]) -> list[str]:
    found = list(names)
    if not found:
        return []
    rest = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return [f"{title} {', '.join(found[:SHOWN])}{rest}"]


def _check_positive(weights: WeightMap, origin: dict[str, str]) -> None:
    """What has a default is a factor: zero or infinity would end in nothing but NaN."""
    for name in weights.defaults.keys() & origin.keys():
        value = weights.parameters[name]
        if not bool((value.isfinite() & (value > 0)).all()):
            raise WeightError(
                f"{origin[name]} is {value.tolist()} and must be one positive number; "
                f"download the checkpoint again"
            )


def _check_ties(weights: WeightMap, checkpoint: Checkpoint, origin: dict[str, str]) -> None:
    """A checkpoint may hold a tied tensor twice, but not with two contents."""
    for name, to in weights.ties.items():
        both = name in checkpoint.entries and origin.get(to) == to
        if both and not torch.equal(checkpoint.read(name), checkpoint.read(to)):
            raise WeightError(
                f"{name} and {to} are tied in the model and differ in checkpoint "
                f"{checkpoint.folder}; set tie_word_embeddings to false in config.json"
            )
