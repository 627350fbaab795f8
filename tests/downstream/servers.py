# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""``ts serve`` with folders laid over the environment, asked by token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tokenspeed.bench.served import Served, served

from .layers import variables

TINY = ("--threads", "1", "--dtype", "float32", "--kv-pages", "64")
"""Options of a server of a model that takes milliseconds."""


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: Served
    model: str

    @property
    def printed(self) -> str:
        """All that it has printed."""
        return "".join(self.process.output)

    def post(self, ids: list[int], count: int) -> httpx.Response:
        """The answer to a greedy request."""
        body = {
            "model": self.model,
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": count, "temperature": 0, "ignore_eos": True},
        }
        return httpx.post(f"{self.process.url}/generate", json=body, timeout=30)

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The next ids."""
        response = self.post(ids, count)
        assert response.status_code == 200, response.text + self.printed
        (answer,) = response.json()
        output: list[int] = answer["output_ids"]
        return output

    def metrics(self) -> str:
        """In the exposition format."""
        return httpx.get(f"{self.process.admin_url}/metrics", timeout=20).text


@contextmanager
def serving(
    folder: Path,
    *options: str,
    layers: Sequence[Path] = (),
    **more: str,
) -> Iterator[Server]:
    """Serve a small model for the length of the block.

    Args:
        layers: folders in front of the import path.
        more: further environment variables.

    Raises:
        ServeFailedError: it ended instead; the text is what it printed.
    """
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**variables(layers), **more}.items():
                patch.setenv(name, value)
            process = stack.enter_context(served(str(folder), [*TINY, *options]))
        yield Server(process, folder.name)
