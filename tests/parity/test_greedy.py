# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Our greedy tokens against those of Transformers, float32, the same real weights.

Teacher-forced: the engine runs freely until it differs from the reference, and from there it goes
on with the reference's token, so every position is judged on the reference's own history. A
position that differs is excused only if the reference's two best logits were nearly equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import demo_model
from tokenspeed import LLM, SamplingParams

REFERENCE = json.loads((Path(__file__).parent.parent / "data" / "parity.json").read_text())
CASES = REFERENCE["cases"]
POSITIONS = sum(len(case["ids"]) for case in CASES)
TIE = 1e-4
EXCUSED_SHARE = 0.01
TOO_MANY = 5
PAGE = 16


class Difference(NamedTuple):
    """A position at which our token is not the reference's, and how close its two best were."""

    case: int
    position: int
    ours: int
    gap: float


def differences(llm: LLM, cases: Sequence[dict[str, Any]]) -> list[Difference]:
    """All of them; gives up early when there are many."""
    found: list[Difference] = []
    pending = [(number, 0) for number in range(len(cases))]
    while pending and len(found) < TOO_MANY:
        prompts = [cases[n]["prompt"] + cases[n]["ids"][:start] for n, start in pending]
        lengths = [len(cases[n]["ids"]) - start for n, start in pending]
        params = [SamplingParams(temperature=0, max_tokens=t, ignore_eos=True) for t in lengths]
        answers = llm.generate(prompts, params)
        differ = [
            Difference(n, start + at, answer.token_ids[at], cases[n]["gaps"][start + at])
            for (n, start), answer in zip(pending, answers, strict=True)
            if (at := first_difference(answer.token_ids, cases[n]["ids"][start:])) is not None
        ]
        found += differ
        pending = [
            (d.case, d.position + 1) for d in differ if d.position + 1 < len(cases[d.case]["ids"])
        ]
    return found


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    assert len(ours) == len(theirs)
    return next(
        (i for i, pair in enumerate(zip(ours, theirs, strict=True)) if len(set(pair)) > 1), None
    )


def judge(found: Sequence[Difference]) -> None:
    wrong = [d for d in found if d.gap >= TIE]
    assert not wrong
    assert len(found) <= EXCUSED_SHARE * POSITIONS, f"{len(found)} excused of {POSITIONS}"


@contextmanager
def engine(folder: Path, **options: Any) -> Iterator[LLM]:
    with LLM(
        str(folder), threads=2, dtype="float32", page_size=PAGE, max_model_len=1024, **options
    ) as llm:
        yield llm


def test_the_reference_is_of_these_weights(demo_folder: Path) -> None:
    """Else: run the command in the file again."""
    assert demo_model.weights_digest(demo_folder) == REFERENCE["weights_sha256"]
    assert len(CASES) == 20
    assert POSITIONS == 20 * 64


def test_one_at_a_time(demo_folder: Path) -> None:
    with engine(demo_folder, max_num_seqs=1, prefix_cache=False) as llm:
        judge(differences(llm, CASES))


def test_sixteen_at_once(demo_folder: Path) -> None:
    """Four of the twenty wait; the shortest prompt is 1 token, the longest 500."""
    with engine(demo_folder, max_num_seqs=16, max_step_tokens=512, prefix_cache=False) as llm:
        judge(differences(llm, CASES))


def test_sixteen_at_once_in_chunks_with_prefix_hits(demo_folder: Path) -> None:
    """The prompts are computed 32 tokens a step, once; every answer stands on those pages."""
    with engine(demo_folder, max_num_seqs=16, max_step_tokens=32) as llm:
        prompts = [case["prompt"] for case in CASES]
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1))
        again = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1))
        # All but the last token, whose logits are wanted: a hit may end inside a page.
        assert [answer.cached_tokens for answer in again] == [len(p) - 1 for p in prompts]
        judge(differences(llm, CASES))


def test_one_at_a_time_with_prefix_hits(demo_folder: Path) -> None:
    with engine(demo_folder, max_num_seqs=1) as llm:
        some = CASES[-9::2]  # raw text of 1, 16, 33, 200 and 500 tokens
        assert [len(case["prompt"]) for case in some] == [1, 16, 33, 200, 500]
        prompts = [case["prompt"] for case in some]
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1))
        judge(differences(llm, some))
