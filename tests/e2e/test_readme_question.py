# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a newcomer asks first: the README's snippets, word for word, and the settings it offers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tokenspeed import LLM, SamplingParams
from tokenspeed.process.gateway import GatewayConfig, curl_line

README = (Path(__file__).parents[2] / "README.md").read_text()
SNIPPETS = [
    code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "base_url" in code
]
QUESTION = "What is the capital of Japan?"
ANSWER = "The capital of Japan is Tokyo."


@pytest.mark.parametrize("code", SNIPPETS, ids=["openai", "anthropic"])
def test_the_snippets_print_the_answer(
    server: Any, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    assert QUESTION in code
    assert "max_tokens" in code, "a model that repeats itself would go on to its length"
    exec(code.replace("http://127.0.0.1:8000", server.url), {})
    assert capsys.readouterr().out == f"{ANSWER}\n"


def test_the_curl_line_asks_the_same() -> None:
    assert QUESTION in curl_line(GatewayConfig(host="127.0.0.1", port=80), "demo")


def test_the_answer_is_no_near_tie(demo_folder: Path) -> None:
    """With the settings that the README offers for a CPU. Rounding moves a logit by some tenths;
    the first token decides the answer's language."""
    asked = SamplingParams(max_tokens=64, temperature=0, logprobs=True, top_logprobs=2)
    with LLM(str(demo_folder), quantization="int8", drafter="suffix") as llm:
        [answer] = llm.chat([{"role": "user", "content": QUESTION}], asked)
    assert (answer.text, answer.finish_reason) == (ANSWER, "stop")
    first, second = (logprob for _, logprob in answer.logprobs[0].top)
    assert first - second > 2
