# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The workload of speculation is whole, varied, and fits the demo model."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenspeed.bench.edits import Edit, Free, read_edits, read_free

FOLDER = Path(__file__).resolve().parents[2] / "bench" / "edits"
EDITS = read_edits(FOLDER / "edits.jsonl")
FREE = read_free(FOLDER / "free.jsonl")
CONTEXT = 2048
TEMPLATE = 64
"""Tokens that a chat template may add, with room."""


def test_there_are_enough_of_many_kinds() -> None:
    assert len(EDITS) >= 20
    assert len(FREE) >= 10
    assert len({edit.kind for edit in EDITS}) >= 10
    assert len({edit.language for edit in EDITS}) >= 10
    ids = [row.id for row in (*EDITS, *FREE)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.id)
def test_an_edit_is_whole_code_and_a_sentence(edit: Edit) -> None:
    assert 20 <= edit.code.count("\n") <= 60
    assert edit.code.endswith("\n")
    assert not edit.code.startswith("\n")
    assert edit.instruction.endswith(".")
    assert "```" not in edit.code  # it would end the block
    assert edit.prompt.startswith(edit.instruction)
    assert f"```{edit.language}\n{edit.code}```\n" in edit.prompt


@pytest.mark.parametrize("edit", [e for e in EDITS if e.language == "python"], ids=lambda e: e.id)
def test_code_in_python_is_python(edit: Edit) -> None:
    compile(edit.code, edit.id, "exec")


@pytest.mark.parametrize("free", FREE, ids=lambda free: free.id)
def test_free_text_has_nothing_to_copy(free: Free) -> None:
    assert "```" not in free.prompt
    words = re.findall(r"\w+", free.prompt.lower())
    threes = Counter(zip(words, words[1:], words[2:], strict=False))
    assert max(threes.values()) == 1


@pytest.fixture(scope="module")
def tokenizer(demo_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(demo_folder / "tokenizer.json"))


@pytest.mark.weights
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.id)
def test_the_code_itself_is_no_loop(tokenizer: Tokenizer, edit: Edit) -> None:
    """An answer is left out that says 16 tokens three times: none may have to."""
    ids = tokenizer.encode(edit.code).ids
    grams = Counter(tuple(ids[i : i + 16]) for i in range(len(ids) - 15))
    assert max(grams.values()) < 3


@pytest.mark.weights
def test_prompt_and_answer_fit_the_demo_model(tokenizer: Tokenizer) -> None:
    """The answer is the code with small changes: half as much again at the most."""
    for edit in EDITS:
        code = len(tokenizer.encode(edit.code).ids)
        prompt = len(tokenizer.encode(edit.prompt).ids)
        assert code >= 150, f"{edit.id}: too short to tell anything"
        assert TEMPLATE + prompt + 3 * code // 2 <= CONTEXT, f"{edit.id}: {prompt} + {code} tokens"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "a"}', "line 2: .*`prompt`"),
        ('{"id": 3, "prompt": "b"}', r"line 2: .*\$\.id"),
        ('{"id": "a", "prompt": "b", "promt": "c"}', "line 2: .*`promt`"),
        ("{", "line 2: "),
        ("", "line 2: "),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "free.jsonl"
    path.write_text('{"id": "z", "prompt": "y"}\n' + line + "\n")
    with pytest.raises(ValueError, match=rf"free\.jsonl, {message}"):
        read_free(path)
