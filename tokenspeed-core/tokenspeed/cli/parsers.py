# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How a model writes tool calls and marks its reasoning, read from its chat template.

A template shows a model's family better than its architecture does: many families are Llamas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tokenspeed.front.chat_template import ChatTemplate
from tokenspeed.front.errors import InvalidRequest

TOOL_CALLS = (
    (("<tool_call>", "<function="), "qwen_xml"),
    (("<tool_call>", "</think>"), "qwen"),
    (("<tool_call>",), "qwen2.5"),  # unlike "qwen" it loses nothing, however the text is cut
    (("<|python_tag|>",), "llama"),
    (("[TOOL_CALLS]",), "mistral"),
)
"""Marks in a template -> the gateway's parser of what is between them; the first that fits."""

THINKS = ("<think>", "</think>")


class Parsers(NamedTuple):
    """Names of the gateway's parsers; None: the template shows none."""

    tool_call: str | None = None
    reasoning: str | None = None


def parsers_of(template: str | None, special_tokens: Mapping[str, str]) -> Parsers:
    """Of a chat template; of none, none."""
    if template is None:
        return Parsers()
    fitting = (parser for marks, parser in TOOL_CALLS if all(mark in template for mark in marks))
    return Parsers(next(fitting, None), _reasoning(template, special_tokens))


def _reasoning(template: str, special_tokens: Mapping[str, str]) -> str | None:
    """A parser that waits for the first mark, or one for a prompt that ends with it."""
    begin, end = THINKS
    if end not in template:
        return None
    try:
        prompt = ChatTemplate(template, special_tokens).render([{"role": "user", "content": "a"}])
    except InvalidRequest:  # it wants another conversation than that
        return "qwen3"
    return "deepseek_r1" if prompt.rfind(begin) > prompt.rfind(end) else "qwen3"
