# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The safetensors files of one folder, read as one set of named tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from tokenspeed_sdk.model_files import MAX_INDEX_BYTES, read_object
from tokenspeed_sdk.modeling.weights import WeightError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
"""Ends of names of files that hold Python objects."""

FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Dtypes that can be converted without further tensors such as scales."""

INTEGER_BYTES = {"I64": 8, "I32": 4}
"""Dtypes of tables, such as those of token ids."""

CODES = "F8_E4M3"
"""One byte that stands for a number only together with a scale."""


@dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint, before it is read."""

    file: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Bytes in the file; 0 for a dtype that the loader refuses."""
        sizes = {CODES: 1, **FLOAT_BYTES, **INTEGER_BYTES}
        size = sizes.get(self.dtype, 0)
        return math.prod(self.shape) * size


class Checkpoint:
    """Open files of one folder. Use as a context manager.

    Raises on opening:
        WeightError: no weights, a broken file, or an index that does not agree with its files.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.entries: dict[str, Entry] = {}
        self._files: dict[str, Any] = {}
        self._stack = ExitStack()
        try:
            self._open_all()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.clear()
        self._stack.close()

    def read(self, name: str) -> torch.Tensor:
        """One tensor on the CPU in the dtype of the file."""
        tensor: torch.Tensor = self._files[self.entries[name].file].get_tensor(name)
        return tensor

    def _open_all(self) -> None:
        index = self.folder / INDEX
        if index.is_file():
            listed = _read_index(index)
            for file in sorted(set(listed.values())):
                self._open(file)
            self._compare(listed)
        elif (self.folder / SINGLE).is_file():
            self._open(SINGLE)
        else:
            raise WeightError(
                f"{self.folder} holds neither {SINGLE} nor {INDEX}{self._others()}; "
                f"download the checkpoint in safetensors format"
            )

    def _others(self) -> str:
        """Weights of formats that are never opened: to read them is to run what they hold."""
        found = sorted({file.name for end in PICKLES for file in self.folder.glob(f"*{end}")})
        return f": {', '.join(found[:3])} could run code when read, and is not opened" * bool(found)

    def _open(self, file: str) -> None:
        path = self.folder / file
        if not path.is_file():
            raise WeightError(f"{INDEX} names {file}, which {self.folder} lacks; download it again")
        try:
            opened = self._stack.enter_context(safe_open(path, framework="pt", device="cpu"))
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                part = opened.get_slice(name)
                if name in self.entries:
                    first = self.entries[name].file
                    raise WeightError(f"tensor {name!r} is in {first} and in {file}; keep one")
                self.entries[name] = Entry(file, tuple(part.get_shape()), part.get_dtype())
        except SafetensorError as error:
            raise WeightError(f"{path} is broken: {error}; download it again") from error
        self._files[file] = opened

    def _compare(self, listed: Mapping[str, str]) -> None:
        found = {name: entry.file for name, entry in self.entries.items()}
        for name in sorted(listed.keys() | found.keys()):
            if listed.get(name) != found.get(name):
                raise WeightError(
                    f"tensor {name!r}: {INDEX} says {listed.get(name, 'nothing')}, it is in "
                    f"{found.get(name, 'no file')}; download the checkpoint again"
                )


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    try:
        listed = read_object(path, MAX_INDEX_BYTES)["weight_map"]
        names = {str(name): str(file) for name, file in listed.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightError(
            f"{path} is no weight index: {error!r}; download the checkpoint again"
        ) from error
    for file in names.values():
        if Path(file).name != file:
            raise WeightError(f"{path} names {file!r}, which is not a plain file name")
    return names
