# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A kernel that fails when it is called: the server ends, and says whose it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenspeed.bench.served import ServeFailedError

from .cases import UNRUNNABLE
from .checkpoints import Checkpoint
from .servers import serving

FAILING = [name for name, case in UNRUNNABLE.items() if case.refusal]


@pytest.mark.rule("R6")
@pytest.mark.parametrize("name", FAILING)
def test_it_is_named_with_its_owner(name: str, llama: Checkpoint, tmp_path: Path) -> None:
    """When the server is started, or at the latest with the first request, which gets an answer."""
    case = UNRUNNABLE[name]
    case.install(tmp_path)
    try:
        with serving(llama.folder, *case.choose, layers=[tmp_path]) as server:
            answer = server.post([1, 2, 3], 4)
            assert answer.status_code >= 500, answer.text
            server.process.process.wait(20)
        told = server.printed
    except ServeFailedError as error:
        told = str(error)
    end = told[told.rindex("ts serve: engine failed") :]
    for words in case.refusal:
        assert words in end
