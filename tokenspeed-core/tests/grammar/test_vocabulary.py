# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The bytes of tokens, against what the tokenizer itself makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenspeed.front.model_folder import ModelFolder
from tokenspeed.grammar.vocabulary import read_vocabulary

TEXT = "hello w\u00f6rld \U0001f642\n\t  {}\u65e5\u672c"


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["<|end|>", *alphabet])}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("\u0120", "w"), ("\u00c3", "\u00b6")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def pieces() -> Tokenizer:
    """As Llama 2 and Gemma: a mark for the space, and a token for each byte."""
    vocab = {"<unk>": 0, "<|end|>": 1} | {f"<0x{byte:02X}>": byte + 2 for byte in range(256)}
    for text in ("\u2581", "h", "e", "l", "o", "w", "\u2581w", "he", "\u00f6"):
        vocab[text] = len(vocab)
    merges = [("\u2581", "w"), ("h", "e")]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, **config: Any) -> ModelFolder:
    tokenizer.add_special_tokens(["<|end|>", "<|other|>"])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(config))
    return ModelFolder(str(folder))


@pytest.mark.parametrize("make", [byte_level, pieces])
def test_tokens_of_a_text_add_up_to_it(make: Any, tmp_path: Path) -> None:
    tokenizer = make()
    folder = save(tokenizer, tmp_path, eos_token_id=[tokenizer.token_to_id("<|end|>")])
    text = TEXT.replace(" ", "\u2581") if make is pieces else TEXT
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    vocabulary = read_vocabulary(folder, 600)
    assert b"".join(vocabulary.tokens[id_] for id_ in ids) == TEXT.encode()
    assert any(len(vocabulary.tokens[id_]) > 1 for id_ in ids), "one that was merged"
    assert len(vocabulary.tokens) == 600
    assert vocabulary.mask_words == 19


def test_special_tokens_have_names_and_no_bytes(tmp_path: Path) -> None:
    tokenizer = byte_level()
    folder = save(tokenizer, tmp_path, eos_token_id=tokenizer.token_to_id("<|end|>"))
    vocabulary = read_vocabulary(folder, 600)
    end = tokenizer.token_to_id("<|end|>")
    assert vocabulary.end_ids == (end,)
    assert dict(vocabulary.special) == {
        name: tokenizer.token_to_id(name) for name in ("<|end|>", "<|other|>")
    }
    for _, id_ in vocabulary.special:
        assert vocabulary.tokens[id_] == b""
    added = tokenizer.token_to_id("<tool>")
    assert vocabulary.tokens[added] == b"<tool>", "added, and not special: it is text"
    assert vocabulary.tokens[-1] == b"", "the model has more logits than the tokenizer tokens"
    assert vocabulary.encode is not None
    assert vocabulary.encode("hello") == tokenizer.encode("hello").ids


def test_a_model_without_an_end_token_is_named(tmp_path: Path) -> None:
    folder = save(byte_level(), tmp_path)
    with pytest.raises(ValueError, match="names no eos_token_id"):
        read_vocabulary(folder, 600)
