# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What several folders of tests need: plans with plugins that the test writes."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from tokenspeed.plugins.choose.lists import Lists
from tokenspeed.plugins.plan import Planned, PluginPlan

_numbers = itertools.count(1)

SOURCE = '''
import os, pathlib, time
from tokenspeed_sdk.contracts.grammar import GrammarError
from tokenspeed_sdk.contracts.probe import Accept, Decline


class Backend:
    """Takes regular expressions; what to do is what they say."""

    name = {name!r}

    def accept(self, constraint):
        if "accept: die" in constraint.text:
            os._exit(3)
        if constraint.kind != "regex" or "decline" in constraint.text:
            return Decline("does not honour that at #")
        return Accept({score}, "ready")

    def open(self, vocabulary):
        assert len(vocabulary.tokens) == 512
        return self

    def compile(self, constraint):
        text = constraint.text
        if "slow" in text:
            time.sleep(60)
        if "die" in text:
            os._exit(3)
        if text.startswith("ends "):  # so many times, which a file counts
            _, times, file = text.split(maxsplit=2)
            with pathlib.Path(file).open("ab", buffering=0) as count:
                if count.tell() < int(times):
                    count.write(b"x")
                    os._exit(3)
        if text.startswith("sleep "):
            time.sleep(float(text[6:]))
        if "raise" in text:
            1 / 0
        if "bad" in text:
            raise GrammarError("that is bad")
        if "large" in text:
            return bytes(1 << 20)
        print("compiling", text)
        return f"{{self.name}} {{text}}".encode()
'''


@pytest.fixture
def plan_of_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PluginPlan]:
    """``plan_of_sources("observer", "Observer", {"good": "class Observer: ..."})``: a plan with a
    plugin of one module for each source.

    ``needs={"good": ("token_ids",)}`` is what the manifests say.
    """

    def make(
        contract: str,
        attribute: str,
        sources: Mapping[str, str],
        *,
        needs: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        lists: Lists = Lists(),  # noqa: B008 (frozen)
    ) -> PluginPlan:
        folder = tmp_path / f"plugins{next(_numbers)}"
        folder.mkdir()
        monkeypatch.syspath_prepend(folder)
        planned = []
        for name, source in sources.items():
            module = f"{contract}_{name}_{next(_numbers)}"
            (folder / f"{module}.py").write_text(textwrap.dedent(source))
            planned.append(
                Planned(
                    contract=contract,
                    name=name,
                    value=f"{module}:{attribute}",
                    distribution=f"{name}-wheel",
                    version="1.2",
                    number="1.0",
                    claims=(name,),
                    needs=needs.get(name, ()),
                    plugin=name,
                )
            )
        return PluginPlan.make("fake", planned, lists)

    return make


@pytest.fixture
def grammar_plan(plan_of_sources: Callable[..., PluginPlan]) -> Callable[..., PluginPlan]:
    """``grammar_plan(one=50, two=60)``: a plan with backends of these names and scores.

    Another source than ``SOURCE`` may be given for all, with {name!r} and {score} in it.
    """

    def make(source: str = SOURCE, **scores: int) -> PluginPlan:
        written = textwrap.dedent(source)
        sources = {name: written.format(name=name, score=score) for name, score in scores.items()}
        return plan_of_sources("grammar", "Backend", sources)

    return make
