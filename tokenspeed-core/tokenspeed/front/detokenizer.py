# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Token ids to text, one token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"
PROMPT_TAIL = 6
"""Prompt tokens that are decoded along, so that the first new token keeps its leading space."""
_MAX_PENDING = 64
"""Tokens that may wait for a character to become whole; a character is at most 4 bytes long."""


class Detokenizer:
    """Emits whole characters only: a token that ends inside one waits for the next.

    A window of ids is decoded again with each token: those whose text was emitted last, for
    context, then the pending ones. It begins where a character begins, and so stays a few long.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_tail: Sequence[int], *, skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window = list(prompt_tail)
        self._emitted = self._decode(self._window)
        self._pending = 0

    def push(self, token: int) -> str:
        """The text that became certain with this token; empty while a character is incomplete."""
        self._window.append(token)
        self._pending += 1
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT) and self._pending < _MAX_PENDING:
            return ""
        return self._emit(text)

    def flush(self) -> str:
        """The rest, with U+FFFD for a character that never became whole."""
        return self._emit(self._decode(self._window)) if self._pending else ""

    def _emit(self, text: str) -> str:
        pending = self._window[len(self._window) - self._pending :]
        alone = self._decode(pending)
        # Byte-fallback decoders take back a character when invalid bytes follow it.
        new = text[len(self._emitted) :] if text.startswith(self._emitted) else alone
        if new or self._pending >= _MAX_PENDING:
            self._window, self._emitted, self._pending = pending, alone, 0
        return new

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens)
