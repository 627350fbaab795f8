# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The workload of speculation: code to be written again with small changes, and plain questions.

One JSON object a line. Of ``edits.jsonl``: id, kind, language, instruction and code. Of
``free.jsonl``: id and prompt; an answer to it repeats nothing that was said before.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

_Row = TypeVar("_Row", bound=msgspec.Struct)


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Given code and what to change in it.

    Attributes:
        kind: what sort of change, such as "rename".
        language: of the code, as it stands behind the fence of a Markdown block.
        instruction: the change in words.
        code: whole lines.
    """

    id: str
    kind: str
    language: str
    instruction: str
    code: str

    @property
    def prompt(self) -> str:
        """What a user says: the instruction, then the code as a block of Markdown."""
        return f"{self.instruction}\n\n```{self.language}\n{self.code}```\n"


class Free(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question whose answer has no model in its prompt."""

    id: str
    prompt: str


def read_edits(path: Path) -> list[Edit]:
    """All of a file. ValueError names the line and the field that is wrong."""
    return _read(path, Edit)


def read_free(path: Path) -> list[Free]:
    """All of a file. ValueError names the line and the field that is wrong."""
    return _read(path, Free)


def _read(path: Path, kind: type[_Row]) -> list[_Row]:
    decoder = msgspec.json.Decoder(kind)
    rows: list[_Row] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            rows.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise ValueError(f"{path.name}, line {number}: {error}; mend the line") from error
    return rows
