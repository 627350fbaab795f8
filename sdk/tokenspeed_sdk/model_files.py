# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The small files of a model's folder, whose maker is not trusted: they are data, of a bounded
size, and of this folder alone.

Standard library only.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MAX_CONFIG_BYTES = 16 << 20
"""Of config.json and its like."""
MAX_INDEX_BYTES = 64 << 20
"""Of the index of weights."""
MAX_TOKENIZER_BYTES = 256 << 20
"""Of tokenizer.json and other vocabularies."""
MAX_TEMPLATE_BYTES = 1 << 20
"""Of a chat template."""


def check_place(file: Path) -> None:
    """That it is of its folder, so that no link shows what else this user can read.

    In the hub's cache a folder of ``snapshots`` links to ``blobs`` beside that; this is allowed.

    Raises:
        ValueError: it is a link to another place.
    """
    real = Path(os.path.realpath(file))
    folder = Path(os.path.realpath(file.parent))
    homes = [folder]
    if folder.parent.name == "snapshots":
        homes.append(folder.parent.parent / "blobs")
    if not any(real.is_relative_to(home) for home in homes):
        raise ValueError(f"{file} is a link to {real}, outside of its folder; put a copy there")


def read_text(file: Path, most: int = MAX_CONFIG_BYTES) -> str:
    """Its text.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no file of this folder, larger than ``most`` bytes, or not UTF-8.
    """
    check_place(file)
    if file.exists() and not file.is_file():
        raise ValueError(f"{file} is not a file; download it again")
    with file.open("rb") as opened:
        content = opened.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{file} has more than {most >> 20} MiB; download it again")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: {error}; download it again") from error


def read_object(file: Path, most: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Its JSON object. OSError and ValueError as ``read_text``; ValueError: it holds none."""
    text = read_text(file, most)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}; download it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object; download it again")
    return content
