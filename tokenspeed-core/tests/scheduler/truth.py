# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a request should compute: the one right course of prompt and answer.

The "KV" of a token is a hash of its whole prefix and of the namespace, and the next token follows
from it: whoever reads a wrong KV anywhere answers something else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenspeed._scheduler import Finish

VOCAB = 3  # small, so that answers collide with each other and with stop ids
GARBAGE = 13


def kv_of_nothing(namespace: int) -> int:
    return 7919 * (namespace + 1)


def kv_after(prefix: int, token: int) -> int:
    return (prefix * 6364136223846793005 + token + 1442695040888963407) % 2**64


def in_group(kv: int, group: int) -> int:
    """A page of one group never holds what a page of another does."""
    return kv ^ group


@dataclass
class Asked:
    """A request as its client sees it, and the truth about it."""

    namespace: int
    prompt: list[int]
    max_new_tokens: int
    stop_ids: list[int]
    draft_tokens: int
    received: list[int] = field(default_factory=list)
    finish: Finish = Finish.NONE
    poisoned: bool = False  # a row of it failed: what it computes no longer means anything
    tokens: list[int] = field(default_factory=list)
    kvs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for token in self.prompt:
            self._add(token)

    def _add(self, token: int) -> None:
        prefix = self.kvs[-1] if self.kvs else kv_of_nothing(self.namespace)
        self.tokens.append(token)
        self.kvs.append(kv_after(prefix, token))

    def _extend(self, size: int) -> None:
        while len(self.tokens) < size:
            self._add((self.kvs[-1] >> 33) % VOCAB)

    def token(self, position: int) -> int:
        self._extend(position + 1)
        return self.tokens[position]

    def kv(self, position: int) -> int:
        self._extend(position + 1)
        return self.kvs[position]

    def answer(self) -> tuple[list[int], Finish]:
        """The whole answer, and why it ends."""
        answer: list[int] = []
        while True:
            answer.append(self.token(len(self.prompt) + len(answer)))
            if answer[-1] in self.stop_ids:
                return answer, Finish.STOP
            if len(answer) == self.max_new_tokens:
                return answer, Finish.LENGTH
