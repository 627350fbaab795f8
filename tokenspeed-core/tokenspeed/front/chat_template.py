# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The model's own chat template, for the offline API. In a server the gateway does this."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenspeed.front.errors import InvalidRequest

if TYPE_CHECKING:
    from tokenspeed.front.model_folder import ModelFolder

Message = Mapping[str, Any]
"""Such as {"role": "user", "content": "Hello"}."""

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """Turns messages into the text that the model was trained on.

    Templates come with the model, so they run in a sandbox; the settings are those that template
    authors write for.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise ValueError(f"the model's chat template cannot be read: {error}") from error
        self._special_tokens = special_tokens

    @classmethod
    def of(cls, folder: ModelFolder) -> ChatTemplate:
        """ValueError when the model has none, or none that can be read."""
        source = source_of(folder)
        if source is None:
            raise ValueError(f"{folder.path} has no chat template; use generate with plain text")
        return cls(source, special_tokens_of(folder))

    def render(self, messages: Sequence[Message]) -> str:
        """Up to where the answer begins. InvalidRequest with the template's objection."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, **self._special_tokens
            )
        except Exception as error:  # whatever an expression of the template runs into
            raise InvalidRequest(
                "messages", messages, f"what the model's chat template accepts: {error}"
            ) from error


def source_of(folder: ModelFolder) -> str | None:
    """The text of a model's own template; None when it has none."""
    file = folder.template_file()
    if file is not None:
        return file
    source = folder.tokenizer_config.get("chat_template")
    if isinstance(source, list):
        source = {named["name"]: named["template"] for named in source}.get("default")
    return None if source is None else str(source)


def special_tokens_of(folder: ModelFolder) -> dict[str, str]:
    """Those that templates name, by their names."""
    config = folder.tokenizer_config
    return {name: _content(config[name]) for name in _SPECIAL_TOKENS if config.get(name)}


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Unlike jinja's own, without escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
