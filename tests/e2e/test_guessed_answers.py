# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Answers of the demo model with the engine's own drafter beside those without, whatever is asked.

The grammars are those of a real library, whose matchers go ahead of the guesses and back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenspeed import LLM, SamplingParams

PEOPLE = [
    {"name": "Ada Lovelace", "born": 1815, "city": "London"},
    {"name": "Alan Turing", "born": 1912, "city": "London"},
]
SCHEMA = {
    "type": "array",
    "minItems": 2,
    "maxItems": 2,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "born": {"type": "integer", "minimum": 1000, "maximum": 9999},
            "city": {"type": "string", "maxLength": 20},
        },
        "required": ["name", "born", "city"],
        "additionalProperties": False,
    },
}
SAID = [{"role": "user", "content": f"Write this list again, as JSON:\n{json.dumps(PEOPLE)}"}]
ASKED: list[dict[str, Any]] = [
    {"json_schema": json.dumps(SCHEMA)},
    {"json_schema": json.dumps(SCHEMA), "temperature": 0.8, "seed": 5, "logprobs": True},
    {"min_tokens": 50, "temperature": 0.6, "seed": 7},
    {"frequency_penalty": 0.5},
    {"repetition_penalty": 0.9, "presence_penalty": 0.2, "temperature": 0.7, "seed": 3},
]


def answers(folder: Path, drafter: str | None) -> tuple[list[Any], int]:
    """Of all that is asked, at once; and how many guesses were right."""
    params = [SamplingParams(**{"temperature": 0.0, "max_tokens": 64, **more}) for more in ASKED]
    with LLM(str(folder), drafter=drafter, dtype="float32", kv_pages=256) as llm:
        prompt = llm.chat_prompt(SAID)
        return llm.generate([prompt] * len(params), params), llm._client.load.accepted_tokens


def test_guesses_change_no_answer(demo_folder: Path) -> None:
    plain, _ = answers(demo_folder, None)
    guessed, right = answers(demo_folder, "suffix")
    assert right > 50
    for more, mine, theirs in zip(ASKED, guessed, plain, strict=True):
        assert mine.token_ids == theirs.token_ids, more
        assert mine.finish_reason == theirs.finish_reason
        if "json_schema" in more and mine.finish_reason == "stop":
            assert len(json.loads(mine.text)) == 2
        if "logprobs" in more:
            found, expected = ([each.logprob for each in a.logprobs] for a in (mine, theirs))
            assert found == pytest.approx(expected, abs=1e-3)
    assert plain[0].finish_reason == "stop"
