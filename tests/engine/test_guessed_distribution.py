# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Tokens that steps with guesses return have the distribution that was asked for, exactly.

The model is a Markov chain: what its layer adds is zero, so the last token alone decides what comes
next, and the right distribution behind each token is a formula of two matrices. A rule that favours
what was guessed, or that returns what was drawn behind a wrong guess, shows in how often each token
follows each other one: Pearson's chi-square over 10^5 draws. Seeds are fixed, so the statistic is
the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import all_at_once, submit
from numpy.typing import NDArray
from test_settings import ReadyMailbox, built
from test_speculation import Knowing
from tokenspeed.messages import EngineOutput, Sampling, Submit

MOST = 3
REQUESTS, LENGTH = 160, 900
DRAWS = 100_000
SURE = 1e-3
"""A right rule comes to a p-value below this once in a thousand choices of seeds."""


@dataclass(frozen=True)
class Asked:
    """What is asked of the draw, in the order in which it applies."""

    temperature: float
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0

    def sampling(self, seed: int) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p, seed)

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """[tokens, tokens] float64: of each token behind each."""
        p, order = (logits / self.temperature).softmax(-1).sort(-1, descending=True)
        if self.top_k > 0:
            p[:, self.top_k :] = 0
        in_front = (p.cumsum(-1) - p) / p.sum(-1, keepdim=True)
        p[(in_front >= self.top_p) | (p < self.min_p * p[:, :1])] = 0
        return torch.zeros_like(p).scatter(-1, order, p / p.sum(-1, keepdim=True))


KINDS = (Asked(1.0), Asked(0.7), Asked(1.2, top_k=4), Asked(1.0, top_p=0.9), Asked(1.3, min_p=0.1))


LADDER = (3.5, 1.6, 1.0, 0.5, 0.0, -0.4, -0.8)
"""Logits of the tokens behind token t: of t + STRIDE, of the one after that, and so on around."""

VOCABULARY, STRIDE, HIDDEN = len(LADDER), 3, 32

LOGITS = torch.stack(
    [torch.tensor(LADDER, dtype=torch.float64).roll(t + STRIDE) for t in range(VOCABULARY)]
)
"""[tokens, tokens]: of what follows each. In the long run all tokens are equally frequent."""


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose one layer adds nothing: LOGITS are the norm of the embedding times the head."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    )
    model = LlamaForCausalLM(config)
    layer = model.model.layers[0]
    with torch.no_grad():
        for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(VOCABULARY, HIDDEN))
        model.lm_head.weight.zero_()[:, :VOCABULARY] = LOGITS.t() / HIDDEN**0.5
    folder = tmp_path_factory.mktemp("chain")
    model.save_pretrained(folder)
    return folder


class Likeliest(Knowing):
    """Guesses mostly the token that is likeliest behind the last one, else any."""

    def draft(
        self, request: NDArray[np.uint64], most: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        for i, number in enumerate(request.tolist()):
            last = self._said[number][-1]
            for place in range(most[i]):
                knows = self._random.random() < 0.95
                last = (last + STRIDE) % VOCABULARY if knows else self._random.randrange(VOCABULARY)
                tokens[i, place] = last
        return most


def follow(outputs: list[EngineOutput], submits: list[Submit]) -> Iterator[tuple[int, int, int]]:
    """(request, token, the one behind it) of all that steps with guesses returned."""
    last = {each.request: int(np.frombuffer(each.tokens, np.int32)[-1]) for each in submits}
    for output in outputs:
        starts = np.frombuffer(output.token_start, np.int32).tolist()
        tokens = np.frombuffer(output.tokens, np.int32).tolist()
        verified = {each.request for each in output.guessed}
        for i, request in enumerate(np.frombuffer(output.request, np.uint64).tolist()):
            for token in tokens[starts[i] : starts[i + 1]]:
                if request in verified:
                    yield request, last[request], token
                last[request] = token


def likelihood(seen: torch.Tensor, p: torch.Tensor) -> float:
    """The p-value of Pearson's statistic of how often tokens followed each other, [tokens, tokens];
    0 where one came that had been filtered."""
    wanted = p * seen.sum(-1, keepdim=True)
    kept = p > 0
    assert wanted[kept].min() > 5, "too few for the statistic"
    if seen[~kept].any():
        return 0.0
    statistic = ((seen - wanted)[kept] ** 2 / wanted[kept]).sum()
    freedom = (kept.sum() - len(p)).double()
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


def test_frequencies_are_those_of_the_softmax(chain: Path) -> None:
    submits = [
        submit(n, [n % VOCABULARY], LENGTH, sampling=KINDS[n % len(KINDS)].sampling(5000 + n))
        for n in range(REQUESTS)
    ]
    mailbox = ReadyMailbox(all_at_once(submits))
    settings: dict[str, Any] = {"max_num_seqs": 64, "draft_tokens": MOST, "drafter": "suffix"}
    with built(chain, mailbox, **settings) as loop:
        loop._speculation._drafter = Likeliest({}, 0.0)
        loop.run()
    seen = torch.zeros(len(KINDS), VOCABULARY, VOCABULARY, dtype=torch.float64)
    for request, before, token in follow(mailbox.outputs, submits):
        seen[request % len(KINDS), before, token] += 1
    found = [likelihood(n, a.probabilities(LOGITS)) for n, a in zip(seen, KINDS, strict=True)]
    right = mailbox.load.accepted_tokens / mailbox.load.drafted_tokens
    print(f"{seen.sum():.0f} draws, {right:.2f} of all guesses right, p-values {found}")
    assert min(found) > SURE
    assert seen.sum() > DRAWS
    assert 0.3 < right < 0.7
