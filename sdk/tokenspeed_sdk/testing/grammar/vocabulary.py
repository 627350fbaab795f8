# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A small vocabulary with everything in it that real ones have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed_sdk.contracts.grammar import Vocabulary

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.grammar import Matcher

_MERGED = ('{"', '":', '": ', '", "', '"}', "true", "null", "[]", "12", "  ", "ab", "ba", "aaa",
           "é", "日本", "name", '"name"', "</f>", " <f=", "\n\n")  # fmt: skip
_HALF = "日".encode()[:2]  # a token may end inside of a character
_SPECIAL = ("<|start|>", "<|end|>", "<|stop|>")
_PADDING = 5


def small_vocabulary() -> Vocabulary:
    """All bytes, some texts of several, half a character, special tokens, two of which end an
    answer, and ids without any text; not a multiple of 32."""
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [text.encode() for text in _MERGED]
    tokens.append(_HALF)
    special = tuple((name, len(tokens) + i) for i, name in enumerate(_SPECIAL))
    tokens += [b""] * (len(_SPECIAL) + _PADDING)
    return Vocabulary(tuple(tokens), end_ids=(special[1][1], special[2][1]), special=special)


def encode(vocabulary: Vocabulary, text: str) -> list[int]:
    """The longest token at each place."""
    ids = {token: id_ for id_, token in enumerate(vocabulary.tokens) if token}
    longest = max(map(len, ids))
    rest, found = text.encode(), []
    while rest:
        size = next(n for n in range(min(longest, len(rest)), 0, -1) if rest[:n] in ids)
        found.append(ids[rest[:size]])
        rest = rest[size:]
    return found


def allowed(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
    """The ids whose bits ``fill`` sets; bits past the last id do not count."""
    mask = np.full(vocabulary.mask_words, 0x5A5A5A5A, np.int32)  # what a mask held before
    matcher.fill(mask)
    return {i for i in range(len(vocabulary.tokens)) if mask[i // 32] >> (i % 32) & 1}


def prefixes(ids: list[int]) -> Iterator[tuple[list[int], int | None]]:
    """(what came, what comes next), the last with None."""
    for i in range(len(ids) + 1):
        yield ids[:i], ids[i] if i < len(ids) else None
