# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The conformance suite of contract ``drafter`` for drafters with a model: one line in a test file.

from acme_head import Acme
from tokenspeed_sdk.testing import draft_model_conformance

test_acme = draft_model_conformance(Acme, CONFIG, TARGET)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch

from tokenspeed_sdk.modeling.config import ConfigReader
from tokenspeed_sdk.testing.drafter.played_target import PAGE_SIZE, PAGES, DraftRunner

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.drafter import DraftModelBackend

MOST = 4

New: TypeAlias = Callable[[], DraftRunner]
Check: TypeAlias = Callable[[New, int], None]
"""Gets what makes a runner, and the size of the vocabulary. AssertionError says what is wrong."""


def _text(seed: int, length: int, vocab: int) -> list[int]:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (length,), generator=random).tolist()


def _guesses(new: New, text: list[int], count: int = MOST) -> list[int]:
    """What is guessed behind a text of one request alone."""
    runner = new()
    runner.observe({1: text[:-1]})
    return runner.draft({1: (text[-1], count)})[1]


def check_guesses(new: New, vocab: int) -> None:
    """Tokens of the target's vocabulary, which depend on the text."""
    found = [_guesses(new, _text(seed, 11, vocab)) for seed in range(8)]
    for token in (token for guess in found for token in guess):
        assert 0 <= token < vocab, f"guesses {token}, which is no token of the target"
    assert len({tuple(guess) for guess in found}) > 1, "it guesses the same, whatever was said"


def check_deterministic(new: New, vocab: int) -> None:
    """Two that had the same guess the same, and guessing alone changes nothing."""
    text = _text(1, 14, vocab)
    runner = new()
    runner.observe({1: text[:-1]})
    asked = [runner.draft({1: (text[-1], MOST)})[1] for _ in range(3)]
    assert asked[0] == asked[1] == asked[2], "asked again, it guesses something else"
    assert asked[0] == _guesses(new, text), "two drafters that had the same differ"


def check_rows(new: New, vocab: int) -> None:
    """Rows do not see each other, and each gets as many guesses as it is asked for."""
    texts = {slot: _text(slot, 5 + 3 * slot, vocab) for slot in (1, 2, 3, 4)}
    counts = {1: 2, 2: MOST, 3: 1, 4: 3}
    runner = new()
    runner.observe({slot: text[:-1] for slot, text in texts.items()})
    found = runner.draft({slot: (text[-1], counts[slot]) for slot, text in texts.items()})
    for slot, text in texts.items():
        alone = _guesses(new, text)[: counts[slot]]
        assert found[slot] == alone, "beside others, a row's guesses are not those it has alone"


def check_captured(new: New, vocab: int) -> None:
    """A captured step is launched for more guesses and rows than there are: they change nothing,
    and a row writes where its own guesses stand. Nothing is read back from the device."""
    whole = PAGE_SIZE * PAGES
    texts = {slot: _text(slot, length, vocab) for slot, length in ((1, 9), (2, whole), (3, 15))}
    counts = {1: 3, 2: 1, 3: 2}
    runner = new()
    runner.observe({slot: text[:-1] for slot, text in texts.items()})
    before = runner.memory()
    wanted = {slot: (text[-1], counts[slot]) for slot, text in texts.items()}
    found = runner.draft(wanted, captured=True)
    allowed = {
        place
        for slot, text in texts.items()
        for place in runner.places(slot, range(len(text) - 1, len(text) - 1 + counts[slot]))
    }
    _check_untouched(runner, before, allowed)
    assert found == runner.draft(wanted), "launched for more, it guesses something else"


def check_chunks(new: New, vocab: int) -> None:
    """However a text is cut, what is guessed behind it is the same."""
    text = _text(2, 23, vocab)
    wanted = _guesses(new, text)
    for cut in ((1, 2, 3), (4, 8, 12), (7,), (10, 11, 12, 13), tuple(range(1, 22))):
        runner = new()
        for start, end in zip((0, *cut), (*cut, len(text) - 1), strict=True):
            runner.observe({1: text[start:end], 2: _text(end, 1, vocab)})
        assert runner.draft({1: (text[-1], MOST)})[1] == wanted, f"cut at {cut}, it guesses else"


def check_wrong_guesses(new: New, vocab: int) -> None:
    """Guesses are observed as they are verified; what goes on elsewhere is as if they had not
    been."""
    text = _text(3, 11 + MOST, vocab)
    for right in range(MOST):
        runner = new()
        runner.observe({1: text[:9]})
        guesses = runner.draft({1: (text[9], MOST)})[1]
        verified = [*text[9 : 10 + right], *guesses[right:]]
        runner.observe({1: verified, 2: [text[0]]}, guessed=True)
        runner.go_back(1, 10 + right)
        wanted = _guesses(new, text[: 11 + right])
        found = runner.draft({1: (text[10 + right], MOST)})[1]
        assert found == wanted, f"behind {right} right guesses, what was wrong still counts"
        runner.observe({1: text[10 + right : -1]})
        assert runner.draft({1: (text[-1], MOST)})[1] == _guesses(new, text), (
            "behind wrong guesses, the text that went on is guessed for otherwise"
        )


def check_found_pages(new: New, vocab: int) -> None:
    """Who finds pages guesses as who computed them, though they were computed for one that went on
    otherwise, and leaves them as they are."""
    for pages, more in ((1, 2), (1, 7), (3, 2), (3, 3)):
        shared = _text(4, pages * PAGE_SIZE, vocab)
        first, second = ([*shared, *_text(seed, more, vocab)] for seed in (5, 6))
        runner = new()
        runner.observe({1: first})
        runner.find(2, 1, pages)
        before = runner.memory()
        runner.observe({2: second[len(shared) : -1]})
        assert runner.draft({2: (second[-1], MOST)})[2] == _guesses(new, second), (
            "behind pages that were found, it guesses something else: what stands at a position "
            "may depend on the tokens up to it, and on nothing else"
        )
        _check_untouched(runner, before, set(), runner.places(1, range(len(first))))


def check_reused_slots(new: New, vocab: int) -> None:
    """What it knows lies in pages alone: a slot's next tenant finds nothing."""
    text = _text(7, 12, vocab)
    runner = new()
    runner.observe({1: _text(8, 17, vocab)})
    runner.draft({1: (3, MOST)})
    runner.release(1)
    runner.observe({1: text[:-1]})
    assert runner.draft({1: (text[-1], MOST)})[1] == _guesses(new, text), (
        "a slot's next tenant is guessed for otherwise: it keeps something that is in no page"
    )


def check_untouched(new: New, vocab: int) -> None:
    """It writes at the positions of what it observes, and where its guesses will stand."""
    runner = new()
    runner.observe({slot: _text(slot, 9, vocab) for slot in (1, 2, 3)})
    before = runner.memory()
    runner.observe({1: _text(9, 3, vocab), 3: [5]})
    allowed = runner.places(1, range(9, 12)) | runner.places(3, [9])
    _check_untouched(runner, before, allowed)
    before = runner.memory()
    runner.draft({1: (4, 2), 2: (7, MOST)})
    allowed = runner.places(1, range(12, 14)) | runner.places(2, range(9, 9 + MOST))
    _check_untouched(runner, before, allowed)


def _check_untouched(
    runner: DraftRunner,
    before: list[torch.Tensor],
    allowed: set[tuple[int, int]],
    among: set[tuple[int, int]] | None = None,
) -> None:
    """Nothing changed but at ``allowed`` places; ``among``: look at these alone."""
    for old, now in zip(before, runner.memory(), strict=True):
        changed = (old != now).any(-1).any(1)  # [pages, PAGE_SIZE]
        places = {(int(page), int(at)) for page, at in changed.nonzero()}
        wrong = (places if among is None else places & among) - allowed
        assert not wrong, f"it writes where it must not: page and offset {sorted(wrong)[:4]}"


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        check.__name__.removeprefix("check_"): check
        for check in (
            check_guesses,
            check_deterministic,
            check_rows,
            check_captured,
            check_chunks,
            check_wrong_guesses,
            check_found_pages,
            check_reused_slots,
            check_untouched,
        )
    }
)
"""All that a drafter with a model must pass, by the name that pytest shows."""


def draft_model_conformance(
    factory: Callable[[], DraftModelBackend],
    config: Mapping[str, Any],
    target: Mapping[str, Any],
) -> Callable[..., None]:
    """A parametrised test of a drafter with a model.

    Assign it to a name that starts with ``test_``. Each check is a test of its own:
    ``test_acme[found_pages]``. Weights are made up, in float64, and so is the target: its hidden
    states depend on all tokens so far.

    Args:
        factory: what the entry point in ``tokenspeed.drafter`` names.
        config: a config.json of the drafter, small.
        target: the config.json of a target that it is for.
    """

    @pytest.mark.parametrize("check", list(CHECKS))
    def test(check: str) -> None:
        backend = factory()
        assert isinstance(backend.name, str), "a drafter has a name"
        CHECKS[check](
            lambda: DraftRunner(backend, config, target), ConfigReader(target).size("vocab_size")
        )

    return test
