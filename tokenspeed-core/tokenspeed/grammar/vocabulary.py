# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The bytes of every token, read from tokenizer.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from tokenspeed_sdk.contracts.grammar import Vocabulary
from tokenspeed_sdk.model_files import MAX_TOKENIZER_BYTES, read_object

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tokenspeed.front.model_folder import ModelFolder

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"


def read_vocabulary(folder: ModelFolder, size: int) -> Vocabulary:
    """Of a model with ``size`` logits; about 0.3 s for 50,000 tokens.

    Raises:
        FileNotFoundError: there is no tokenizer.json.
        ValueError: it holds no vocabulary, or the model names no end token.
    """
    end_ids = folder.eos_ids(size)
    if not end_ids:
        raise ValueError(f"{folder.path} names no eos_token_id, by which a grammar could end")
    file = folder.path / "tokenizer.json"
    described = read_object(file, MAX_TOKENIZER_BYTES)
    spelling = _spelling(described)
    tokens = [b""] * size
    for text, id_ in _vocabulary(described["model"]):
        if id_ < size:
            tokens[id_] = spelling(text)
    special = []
    for added in described.get("added_tokens", ()):
        text, id_ = added["content"], added["id"]
        if id_ < size:
            tokens[id_] = b"" if added["special"] else text.encode()
            if added["special"]:
                special.append((text, id_))
    for id_ in end_ids:
        tokens[id_] = b""
    encode = partial(_encode, folder.tokenizer)  # made now: an engine's thread may ask first
    return Vocabulary(tuple(tokens), end_ids, tuple(special), encode)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _vocabulary(model: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    """Unigram models list their pieces with scores; the others map them to ids."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        return ((piece[0], id_) for id_, piece in enumerate(vocabulary))
    items: Iterable[tuple[str, int]] = vocabulary.items()
    return items


def _spelling(described: Mapping[str, Any]) -> Callable[[str], bytes]:
    """How the tokenizer writes bytes in the texts of its tokens."""
    if any(_mentions(described.get(part), "ByteLevel") for part in ("decoder", "pre_tokenizer")):
        return _of_byte_level
    return _of_pieces


def _mentions(part: Any, kind: str) -> bool:
    """Whether a part of a tokenizer, or any part of that, is of a kind."""
    if isinstance(part, list):
        return any(_mentions(each, kind) for each in part)
    if not isinstance(part, dict):
        return False
    return part.get("type") == kind or any(_mentions(each, kind) for each in part.values())


def _of_byte_level(text: str) -> bytes:
    """A letter for each byte, as GPT-2 writes them: Radford et al., 2019."""
    letters = _letters()
    try:
        return bytes([letters[letter] for letter in text])
    except KeyError:  # a token that was added without being said to be
        return text.encode()


def _of_pieces(text: str) -> bytes:
    """As SentencePiece writes them: single bytes by number, and a mark for the space."""
    if byte := _BYTE.fullmatch(text):
        return bytes([int(byte[1], 16)])
    return text.replace(_SPACE, " ").encode()


@cache
def _letters() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return letters | {chr(0x100 + i): byte for i, byte in enumerate(others)}
