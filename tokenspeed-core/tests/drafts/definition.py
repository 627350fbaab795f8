# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The suffix drafter by its definition: every place is looked at, nothing is indexed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

SHORTEST, LONGEST = 2, 32
"""Tokens of a match."""

VOICES = 16
LEAST_CHANCE = 0.4

Tokens = Sequence[int]


@dataclass
class Text:
    """A request."""

    namespace: int
    prompt: list[int]
    output: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output


class NaiveDrafter:
    """Of any number of requests, with a pool without a bound."""

    def __init__(self) -> None:
        self.texts: dict[int, Text] = {}
        self.pool: list[Text] = []

    def begin(self, request: int, prompt: Tokens, namespace: int) -> None:
        self.texts[request] = Text(namespace, [*prompt])

    def advance(self, request: int, tokens: Tokens) -> None:
        if request in self.texts:
            self.texts[request].output += tokens

    def end(self, request: int) -> None:
        if request in self.texts:
            self.pool.append(self.texts.pop(request))

    def draft(self, request: int, most: int) -> list[int]:
        if request not in self.texts:
            return []
        text = self.texts[request]
        sources = [text.tokens[:-1], *(t.output for t in self._others(text.namespace))]
        known = [text.tokens, *sources[1:]]
        found = [
            (_common(source[:place], text.tokens), whole[place:])
            for source, whole in zip(sources, known, strict=True)
            for place in range(len(source), 0, -1)
            if place < len(whole)
        ]
        longest = max((length for length, _ in found), default=0)
        if longest < SHORTEST:
            return []
        return vote(longest, [said for length, said in found if length == longest][:VOICES], most)

    def _others(self, namespace: int) -> list[Text]:
        return [text for text in reversed(self.pool) if text.namespace == namespace]


def vote(length: int, said: list[list[int]], most: int) -> list[int]:
    """What most say, token by token, until it is too uncertain."""
    guess: list[int] = []
    chance = 1.0
    while len(guess) < most:
        said = [words for words in said if len(words) > len(guess)]
        if not said:
            break
        # most_common keeps the order of first appearance among equals
        [(token, agreeing)] = Counter(words[len(guess)] for words in said).most_common(1)
        chance *= agreeing / len(said) * (1 - 1 / (length + len(said)))
        if chance < LEAST_CHANCE:
            break
        guess.append(token)
        said = [words for words in said if words[: len(guess)] == guess]
    return guess


def _common(left: Tokens, right: Tokens) -> int:
    """Length of the longest end that both have, at most LONGEST."""
    length = 0
    while length < min(LONGEST, len(left), len(right)) and left[-1 - length] == right[-1 - length]:
        length += 1
    return length
