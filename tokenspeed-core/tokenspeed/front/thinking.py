# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Where a model thinks before it answers, and how far a prompt has come with that.

A constraint is about the answer. A model that thinks first marks it with two tokens, and its
template may have written the first of them, or both, at the end of the prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.messages import Thinking

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from tokenspeed.messages import Marks

MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
)
"""Texts that are single tokens of models which have them."""

MOST_BETWEEN = 4
"""Tokens between the end of an empty thought and the end of the prompt: line breaks."""


def find_marks(tokenizer: Tokenizer) -> Marks | None:
    """The two tokens of a model; None where it has none."""
    for texts in MARKS:
        begin, end = (tokenizer.token_to_id(text) for text in texts)
        if begin is not None and end is not None:
            return begin, end
    return None


def thinking_after(
    prompt: NDArray[np.int32], marks: Marks | None, end_ids: tuple[int, ...]
) -> Thinking | None:
    """What may come before the answer to a prompt; None when that begins at once.

    The latest mark of the prompt decides: a beginning, and the model thinks; an end in its last
    tokens, and the thought is over; else the model may begin one.
    """
    if marks is None:
        return None
    begin, end = marks
    begins, ends = (np.flatnonzero(prompt == mark) for mark in marks)
    last_begin, last_end = (int(at[-1]) if len(at) else -1 for at in (begins, ends))
    if last_end > last_begin and last_end >= len(prompt) - 1 - MOST_BETWEEN:
        return None
    return Thinking(begin, end, begun=last_begin > last_end, end_ids=list(end_ids))
