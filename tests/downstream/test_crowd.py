# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Every broken plugin installed at once: the server starts, warns of each once, answers right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cases import BLOCKING, CASES, UNREADABLE, install_all
from .checkpoints import Checkpoint
from .servers import Server, serving
from .sites import imported

PROMPTS = ([3, 5, 7], [250, 14, 99, 1, 8])
COUNT = 24

UNBLOCK = tuple(dict.fromkeys(word for case in BLOCKING.values() for word in case.unblock))
LEVEL = re.compile("warning:|WARNING|ERROR")
WARNED = [name for name, case in CASES.items() if name in UNREADABLE or case.warning]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them."""
    return install_all(tmp_path_factory.mktemp("crowd"))


@pytest.fixture(scope="module")
def server(site: Path, llama: Checkpoint) -> Iterator[Server]:
    """A server that stands on none of them, with what the operator must decide decided."""
    with serving(llama.folder, *UNBLOCK, layers=[site]) as running:
        yield running


@pytest.fixture(scope="module")
def answers(server: Server) -> list[list[int]]:
    return [server.greedy(prompt, COUNT) for prompt in PROMPTS]


@pytest.mark.rule("R6")
def test_the_answers_are_right(answers: list[list[int]], llama: Checkpoint) -> None:
    assert answers == [llama.greedy(prompt, COUNT) for prompt in PROMPTS]


@pytest.mark.rule("R6")
@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize("name", WARNED)
def test_each_is_warned_of_once(server: Server, name: str) -> None:
    case = CASES[name]
    head, *rest = case.warning or case.finding
    telling = [line for line in server.printed.splitlines() if head in line and LEVEL.search(line)]
    assert len(telling) == 1, server.printed
    for words in rest:
        assert words in server.printed


@pytest.mark.rule("R12")
@pytest.mark.usefixtures("server")
def test_what_is_not_chosen_is_not_imported(site: Path) -> None:
    used = imported(site)
    assert {"acme_import", "acme_blocking_observer"} <= used, "the test looks for the wrong thing"
    unused = (*UNREADABLE, "entry-class", "slow", "intruder", "platform-raises")
    assert not used & {CASES[name].plugin.package for name in unused}
