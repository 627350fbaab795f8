# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from tokenspeed.front.detokenizer import Detokenizer

from .conftest import make_tokenizer

BYTE_LEVEL = make_tokenizer()
TEXT = "hello wörld 🙂👩‍👩‍👧 ďábel 日本語 ab"


def byte_fallback_tokenizer() -> Tokenizer:
    """SentencePiece-like: words with a leading space, other characters as bytes."""
    words = ["▁hello", "▁world", "!", "▁", "<unk>"]
    vocab = {w: i for i, w in enumerate(words)} | {f"<0x{b:02X}>": 5 + b for b in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def pieces(tokenizer: Tokenizer, ids: list[int], prompt: tuple[int, ...] = ()) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=True)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def test_whole_characters_only() -> None:
    ids = BYTE_LEVEL.encode(TEXT).ids
    out = pieces(BYTE_LEVEL, ids)
    assert "".join(out) == TEXT
    assert all("\ufffd" not in piece for piece in out)
    assert out[0], "plain text comes at once"


@given(st.lists(st.integers(3, 262), max_size=40))
def test_any_bytes_give_the_text_of_the_whole(ids: list[int]) -> None:
    assert "".join(pieces(BYTE_LEVEL, ids)) == BYTE_LEVEL.decode(ids)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 260), max_size=40))
def test_byte_fallback_never_fails(ids: list[int]) -> None:
    pieces(byte_fallback_tokenizer(), ids)


def test_byte_fallback_emoji_run() -> None:
    tokenizer = byte_fallback_tokenizer()
    ids = [0, *(5 + b for b in "🙂🙂".encode()), 2]
    assert "".join(pieces(tokenizer, ids)) == "hello🙂🙂!"


def test_leading_space_after_a_prompt() -> None:
    assert "".join(pieces(byte_fallback_tokenizer(), [1, 2], prompt=(0,))) == " world!"


def test_unfinished_character_is_flushed() -> None:
    ids = BYTE_LEVEL.encode("a🙂").ids[:-1]
    out = pieces(BYTE_LEVEL, ids)
    assert "".join(out) == "a\ufffd"
    assert out[:-1] == ["a", "", "", ""]


@pytest.mark.parametrize("token", [1, 3 + 188])
def test_window_stays_bounded(token: int) -> None:
    """A run of skipped special tokens, or of bytes that never become a character."""
    detokenizer = Detokenizer(BYTE_LEVEL, (), skip_special_tokens=True)
    for _ in range(1000):
        detokenizer.push(token)
    assert len(detokenizer._window) <= 128
