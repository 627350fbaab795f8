# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which parsers a chat template asks for."""

from __future__ import annotations

from importlib import import_module

import pytest
from tokenspeed.cli.parsers import TOOL_CALLS, Parsers, parsers_of

TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
CASES = [
    (None, Parsers()),
    (TURNS, Parsers()),
    (f'{TURNS}{{% if tools %}}<tool_call>{{"name"}}</tool_call>{{% endif %}}', Parsers("qwen2.5")),
    (f"{TURNS}{{% if tools %}}<tool_call></think>{{% endif %}}", Parsers("qwen", "qwen3")),
    (f"{TURNS}{{% if tools %}}<tool_call><function=f>{{% endif %}}", Parsers("qwen_xml")),
    (f"{TURNS}{{% if tools %}}<|python_tag|>{{% endif %}}", Parsers("llama")),
    (f"{TURNS}{{% if tools %}}[TOOL_CALLS]{{% endif %}}", Parsers("mistral")),
    (f"{{% set a = '</think>' %}}{TURNS}", Parsers(None, "qwen3")),
    (f"{TURNS}{{% if 0 %}}</think>{{% endif %}}<think>\n", Parsers(None, "deepseek_r1")),
    (f"{TURNS}{{% if no_thinking is not defined %}}<think>\n\n</think>{{% endif %}}",
     Parsers(None, "qwen3")),
    ("</think>{{ raise_exception('roles must alternate') }}", Parsers(None, "qwen3")),
]  # fmt: skip


@pytest.mark.parametrize(("template", "expected"), CASES)
def test_a_template_shows_its_parsers(template: str | None, expected: Parsers) -> None:
    assert parsers_of(template, {}) == expected


def test_the_gateway_has_them() -> None:
    gateway = import_module("smg.smg_rs")
    assert {parser for _, parser in TOOL_CALLS} <= {*gateway.get_available_tool_call_parsers()}
    found = {expected.reasoning for _, expected in CASES} - {None}
    assert found <= {*gateway.get_available_reasoning_parsers()}
