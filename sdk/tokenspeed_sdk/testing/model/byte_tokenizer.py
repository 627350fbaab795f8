# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A tokenizer whose tokens are the 256 bytes, so that a tiny model can be served."""

from __future__ import annotations

import json
from pathlib import Path

END = "<|end|>"
"""Token 256: ends an answer. ``TINY_CONFIG`` has it as eos_token_id."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def save_byte_tokenizer(folder: str | Path) -> None:
    """Write tokenizer.json and tokenizer_config.json; needs the package tokenizers."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    tokenizer.save(str(Path(folder, "tokenizer.json")))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2)
    Path(folder, "tokenizer_config.json").write_text(text, encoding="utf-8")
