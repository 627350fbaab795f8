# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the model's folder says about tokens, text and sampling; weights are the engine's matter."""

from __future__ import annotations

import hashlib
import io
import logging
import zipfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed_sdk.model_files import (
    MAX_TEMPLATE_BYTES,
    MAX_TOKENIZER_BYTES,
    check_place,
    read_object,
    read_text,
)

from tokenspeed.front.errors import InvalidRequest
from tokenspeed.front.sampling_params import SamplingParams, resolve_sampling

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

_BUNDLED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "*.tiktoken",
    "*.jinja",
    "*processor_config.json",
)
_READ = ("*.json", "*.txt", "*.jinja", "*.model", "*.tiktoken")
"""What we or the gateway may read or pass on; weights show nobody what they hold."""
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_DEFAULTS = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty"),
)


class ModelFolder:
    """Reads each file once.

    FileNotFoundError names the file that is missing, ValueError one that is not what it should be:
    also a link to another place, for the gateway and its bundle would show what is there.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path).expanduser().resolve()
        for file in self._matching(_READ):
            check_place(file)
        self.config = self._json("config.json", required=True)
        self.generation_config = self._json("generation_config.json")
        self.tokenizer_config = self._json("tokenizer_config.json")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The fast tokenizer; takes up to a second."""
        from tokenizers import Tokenizer

        file = self._existing("tokenizer.json")
        if file.stat().st_size > MAX_TOKENIZER_BYTES:
            most = MAX_TOKENIZER_BYTES >> 20
            raise ValueError(f"{file} has more than {most} MiB; download it again")
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # the library has no narrower one
            raise ValueError(f"{file} holds no tokenizer: {error}; download it again") from error

    @property
    def architectures(self) -> list[str]:
        """The classes that config.json names, any of which can run the model."""
        names = self.config.get("architectures")
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            return names
        raise ValueError(
            f'{self.path / "config.json"} must hold "architectures", a list of names; '
            f"it says {names!r}"
        )

    def eos_ids(self, vocab_size: int) -> tuple[int, ...]:
        """Token ids that end an answer: of generation_config.json, else of config.json."""
        for source in (self.generation_config, self.config, self.config.get("text_config") or {}):
            named = source.get("eos_token_id")
            if named is not None:
                ids = tuple(named) if isinstance(named, list) else (named,)
                if not all(type(id_) is int for id_ in ids):
                    raise ValueError(
                        f"{self.path}: eos_token_id of config.json or generation_config.json "
                        f"must be a token id or a list of them; it says {named!r}"
                    )
                return tuple(id_ for id_ in ids if 0 <= id_ < vocab_size)
        log.warning(
            "%s names no eos_token_id: answers end at max_tokens or a stop string only", self.path
        )
        return ()

    def special_id(self, name: str) -> int | None:
        """``bos_token_id`` or ``pad_token_id``, where the model has one."""
        for source in (self.generation_config, self.config):
            if isinstance(source.get(name), int):
                return int(source[name])
        return None

    def sampling_defaults(self) -> dict[str, float]:
        """The model's sampling defaults; what is out of its range is logged."""
        config = self.generation_config
        given = {name: config[name] for name in _DEFAULTS if config.get(name) is not None}
        usable = {}
        for name, value in given.items():
            try:
                resolve_sampling(SamplingParams(**{name: value}))
            except InvalidRequest as error:
                log.warning("generation_config.json: %s; ignored", error)
            else:
                usable[name] = value
        return usable

    def bundle(self) -> tuple[bytes, str]:
        """(zip of all that a tokenizer needs, its sha256 in hex); equal folders, equal bytes."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in self._matching(_BUNDLED):
                check_place(file)  # it may have changed
                archive.writestr(zipfile.ZipInfo(file.name, _ZIP_EPOCH), file.read_bytes())
        data = buffer.getvalue()
        return data, hashlib.sha256(data).hexdigest()

    def template_file(self) -> str | None:
        """The text of chat_template.jinja; None where there is none."""
        file = self.path / "chat_template.jinja"
        return read_text(file, MAX_TEMPLATE_BYTES) if file.is_file() else None

    def _matching(self, patterns: Sequence[str]) -> list[Path]:
        return sorted({file for pattern in patterns for file in self.path.glob(pattern)})

    def _json(self, name: str, *, required: bool = False) -> dict[str, Any]:
        if not required and not (self.path / name).is_file():
            return {}
        return read_object(self._existing(name))

    def _existing(self, name: str) -> Path:
        file = self.path / name
        if not file.is_file():
            raise FileNotFoundError(
                f"{file} is missing: a model is a folder with config.json and tokenizer.json"
            )
        return file
