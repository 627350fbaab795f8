# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The tiny engine of tests/engine, and one small server for all that is about servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenspeed.bench.served import served

for folder in ("engine", "e2e"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))

from real_server import Server  # noqa: E402
from tiny_engine import cpu, delaying, replaying, tiny_llama, tiny_llama_of_two  # noqa: E402

__all__ = ["cpu", "delaying", "replaying", "tiny_llama", "tiny_llama_of_two"]

STRICT = """\
{%- for message in messages -%}
{%- if (message.role == "user") != (loop.index0 % 2 == 0) -%}
{{ raise_exception("roles must take turns") }}
{%- endif -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
<|im_start|>assistant
"""


@pytest.fixture(scope="session")
def small(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with room for 1,024 tokens, and a template that is particular."""
    template = tmp_path_factory.mktemp("template") / "strict.jinja"
    template.write_text(STRICT)
    arguments = ["--kv-pages", "64", "--threads", "2", "--chat-template", str(template)]
    with served(str(demo_folder), arguments) as process:
        yield Server(process)
