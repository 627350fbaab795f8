# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Seeded traces of agent sessions: many turns with tool pauses between them, under memory pressure.

    python bench/traces/agentic.py                 # what the named traces hold, and their digests
    python bench/traces/agentic.py --seed 7 mixed

A session is one growing text. A turn sends the text so far as its prompt and gets an answer of
known ids; the next turn comes one tool pause after that answer ended, and its prompt is the
previous prompt, the answer and new text. Some sessions have one turn only: they never return.
Nothing in a first request tells which kind it is: lengths and system prompts are drawn alike.

A fixed number of seats holds one session after another, so that the pressure is the same from
the first minute to the last: the trace ends while all seats are taken, and what a session would
have done later is cut off. Sessions of one turn arrive evenly between. The named traces differ
in who returns:

    agents    half of the first requests never return
    mixed     half of all requests are never followed by another one of their session
    one_shot  none returns

A trace is a function of its name and its seed alone, whatever the version of numpy:
``Trace.digest`` names its content. The pool that makes the pressure is POOL_SHARE of the trace's
``working_set``; ``one_shot`` has that of ``mixed``, as without returns there is nothing to hold.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

SEED = 20261130
POOL_SHARE = 0.25


@dataclass(frozen=True)
class Turn:
    """One request of a session.

    Attributes:
        prompt_tokens: the prompt is the session's first so many tokens.
        output_tokens: the answer is the next so many.
        pause_ms: from the end of the previous turn to this request; 0 for a first turn.
    """

    prompt_tokens: int
    output_tokens: int
    pause_ms: int

    @property
    def end(self) -> int:
        """Tokens of prompt and answer together."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class Session:
    """``tokens`` int32[turns[-1].end]: the text of the last turn, so of all of them."""

    arrival_ms: int
    namespace: int
    tokens: NDArray[np.int32]
    turns: tuple[Turn, ...]

    def prompt(self, turn: int) -> NDArray[np.int32]:
        return self.tokens[: self.turns[turn].prompt_tokens]

    def answer(self, turn: int) -> NDArray[np.int32]:
        return self.tokens[self.turns[turn].prompt_tokens : self.turns[turn].end]


@dataclass(frozen=True)
class Shape:
    """What a trace is drawn from. Lengths in tokens, times in milliseconds.

    Published agent workloads start at 50K tokens and add about a thousand in each of 10-15 turns.
    ``first_turn`` scales that down, so that a trace of thousands of requests runs in seconds;
    what a cache has to decide does not depend on it.

    Attributes:
        horizon_ms: when the trace ends.
        seats: sessions alive at a time, those of one turn not counted.
        one_shots: further sessions of one turn. "first": as many as make half of the first
            requests never return; "all": half of all requests the last of their session.
        turns: fewest and most of a returning session, drawn evenly.
        first_turn: median length of a first prompt, its system prompt included.
        new_text: fewest and most tokens that a tool's answer adds.
        output: fewest and most tokens of an answer.
        system_prompts: their lengths; prompt i is chosen in proportion to 1 / (1 + i).
        pause_ms: median of all tool pauses.
        pause_spread: sigma of the lognormal: of a session's own pace, and of a pause about it.
        token_ms: how long one answer token takes nominally; only ``working_set`` and the times
            at which sessions arrive depend on it.
        namespaces: tenants, drawn evenly.
    """

    horizon_ms: int = 600_000
    seats: int = 48
    one_shots: int | str = "all"
    turns: tuple[int, int] = (6, 20)
    first_turn: int = 2000
    new_text: tuple[int, int] = (60, 340)
    output: tuple[int, int] = (16, 96)
    system_prompts: tuple[int, ...] = (400, 240, 320, 160)
    pause_ms: int = 4000
    pause_spread: tuple[float, float] = (0.8, 0.8)
    token_ms: int = 10
    namespaces: int = 1
    vocabulary: int = 32000


SHAPES = {
    "agents": Shape(one_shots="first"),
    "mixed": Shape(one_shots="all"),
    "one_shot": Shape(seats=0, one_shots=3000),
}


@dataclass(frozen=True)
class Trace:
    """Sessions in the order of their arrival."""

    name: str
    seed: int
    sessions: tuple[Session, ...]
    token_ms: int

    @property
    def requests(self) -> int:
        return sum(len(session.turns) for session in self.sessions)

    @property
    def prompt_tokens(self) -> int:
        return sum(turn.prompt_tokens for session in self.sessions for turn in session.turns)

    @property
    def last_turns(self) -> float:
        """Share of the requests that none of their session follows."""
        return len(self.sessions) / self.requests

    @property
    def working_set(self) -> int:
        """Tokens: the peak over time of the summed final lengths of live sessions.

        A session lives from its arrival to the end of its last turn, if all is served at once
        and an answer takes ``token_ms`` a token. A pool of so many tokens loses nothing.
        """
        changes = []
        for session in self.sessions:
            final = session.turns[-1].end
            end = session.arrival_ms + lifetime_ms(session.turns, self.token_ms)
            changes += [(session.arrival_ms, final), (end, -final)]
        return max(itertools.accumulate(change for _, change in sorted(changes)))

    @property
    def digest(self) -> str:
        """Names the content: 16 hexadecimal digits of a SHA-256."""
        content = hashlib.sha256()
        for session in self.sessions:
            content.update(f"{session.arrival_ms} {session.namespace} {session.turns}".encode())
            content.update(session.tokens.astype("<i4").tobytes())
        return content.hexdigest()[:16]


def pool_tokens(name: str, seed: int = SEED) -> int:
    """The tokens that a pool holds under which the named trace is measured."""
    return round(POOL_SHARE * generate("mixed" if name == "one_shot" else name, seed).working_set)


def lifetime_ms(turns: tuple[Turn, ...], token_ms: int) -> int:
    """From a session's arrival to its end, if all is served at once."""
    return sum(turn.pause_ms + turn.output_tokens * token_ms for turn in turns)


def generate(name: str, seed: int = SEED, shape: Shape | None = None) -> Trace:
    """The named trace, or one of another ``shape`` under that name.

    Raises:
        KeyError: ``name`` is none of SHAPES and there is no ``shape``.
    """
    shape = SHAPES[name] if shape is None else shape
    draw = np.random.RandomState(seed)  # its streams are the same in every version of numpy
    systems = [_text(draw, shape, length) for length in shape.system_prompts]
    scripts = [script for _ in range(shape.seats) for script in _seat(draw, shape)]
    for _ in range(_one_shots(shape, [turns for _, turns in scripts])):
        scripts.append((draw.randint(shape.horizon_ms), _turns(draw, shape, 1)))
    scripts.sort(key=lambda script: script[0])
    sessions = [
        Session(
            arrival, draw.randint(shape.namespaces), _tokens(draw, shape, systems, turns), turns
        )
        for arrival, turns in scripts
    ]
    return Trace(name, seed, tuple(sessions), shape.token_ms)


def _seat(draw: np.random.RandomState, shape: Shape) -> list[tuple[int, tuple[Turn, ...]]]:
    """Sessions one after the other, (arrival, turns), until the trace ends."""
    scripts = []
    at = draw.randint(shape.pause_ms)
    while at < shape.horizon_ms:
        turns = _turns(draw, shape, draw.randint(shape.turns[0], shape.turns[1] + 1))
        scripts.append((at, _until(shape.horizon_ms - at, turns, shape.token_ms)))
        at += lifetime_ms(turns, shape.token_ms)
    return scripts


def _until(end_ms: int, turns: tuple[Turn, ...], token_ms: int) -> tuple[Turn, ...]:
    """The turns that begin within ``end_ms`` of the first, if all is served at once."""
    within = 1
    while (
        within < len(turns)
        and lifetime_ms(turns[:within], token_ms) + turns[within].pause_ms < end_ms
    ):
        within += 1
    return turns[:within]


def _one_shots(shape: Shape, seated: list[tuple[Turn, ...]]) -> int:
    """How many sessions of one turn to add to the seated ones."""
    if isinstance(shape.one_shots, int):
        return shape.one_shots
    returning = sum(len(turns) > 1 for turns in seated)
    if shape.one_shots == "first":
        return 2 * returning - len(seated)
    return sum(len(turns) for turns in seated) - 2 * len(seated)


def _turns(draw: np.random.RandomState, shape: Shape, count: int) -> tuple[Turn, ...]:
    pace, about_it = shape.pause_spread
    median = shape.pause_ms * draw.lognormal(0.0, pace)
    length = round(shape.first_turn * draw.lognormal(0.0, 0.3))
    length = max(length, max(shape.system_prompts) + shape.new_text[0])
    turns: list[Turn] = []
    for index in range(count):
        pause = round(median * draw.lognormal(0.0, about_it)) if index else 0
        if index:
            length = turns[-1].end + draw.randint(shape.new_text[0], shape.new_text[1] + 1)
        turns.append(Turn(length, draw.randint(shape.output[0], shape.output[1] + 1), pause))
    return tuple(turns)


def _text(draw: np.random.RandomState, shape: Shape, length: int) -> NDArray[np.int32]:
    return draw.randint(0, shape.vocabulary, size=length).astype(np.int32)


def _tokens(
    draw: np.random.RandomState,
    shape: Shape,
    systems: list[NDArray[np.int32]],
    turns: tuple[Turn, ...],
) -> NDArray[np.int32]:
    """A system prompt that others share, then text of the session's own."""
    weights = 1.0 / np.arange(1, len(systems) + 1)
    system = systems[draw.choice(len(systems), p=weights / weights.sum())]
    return np.concatenate([system, _text(draw, shape, turns[-1].end - len(system))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(SHAPES), help=", ".join(SHAPES))
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--first-turn", type=int, help="median tokens of a first prompt")
    parser.add_argument("--namespaces", type=int, default=1)
    options = parser.parse_args()
    for name in options.names:
        shape = replace(SHAPES[name], namespaces=options.namespaces)
        if options.first_turn is not None:
            shape = replace(shape, first_turn=options.first_turn)
        trace = generate(name, options.seed, shape)
        print(
            f"{name}: {len(trace.sessions)} sessions, {trace.requests} requests, "
            f"{trace.last_turns:.0%} of them the last of their session; "
            f"{trace.prompt_tokens} prompt tokens; working set {trace.working_set} tokens; "
            f"digest {trace.digest}"
        )


if __name__ == "__main__":
    main()
