# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
from __future__ import annotations

import json
from pathlib import Path

import pytest
from acme_journal import VARIABLE, Journal
from tokenspeed_sdk.contracts.observer import HOOKS, TokensGenerated
from tokenspeed_sdk.testing import observer_conformance


@pytest.fixture
def journal_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "journal"))
    return tmp_path / "journal"


test_journal = pytest.mark.usefixtures("journal_file")(observer_conformance(Journal))


def test_it_has_every_hook() -> None:
    assert {name for name in vars(Journal) if not name.startswith("_")} == {*HOOKS, "close"}


def test_a_line_for_an_event(journal_file: Path) -> None:
    journal = Journal()
    journal.tokens_generated(TokensGenerated(1.5, 1, 0, 2, 0.25, None, (5, 6)))
    journal.close()
    line = json.loads(journal_file.read_text())
    assert (line["hook"], line["count"], line["token_ids"]) == ("tokens_generated", 2, [5, 6])
