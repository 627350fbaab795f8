# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Hugging Face Transformers with a static batch: what people use without an engine.

It runs in a process of its own, untouched by what our platform sets for our engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class StaticBatch:
    """The process, seen from ours."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """Seconds for ``steps`` tokens of every prompt after the first token."""
        return self._ask(do="decode", prompts=prompts, steps=steps)

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds for a forward pass over a prompt, the head on its last token only."""
        return self._ask(do="prefill", prompt=prompt)

    def _ask(self, **question: Any) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process with Transformers ended; its output above says why")
        return float(json.loads(answer))


@contextmanager
def static_batch(
    folder: str, threads: int, environment: Mapping[str, str]
) -> Iterator[StaticBatch]:
    """Start it; it ends with the block."""
    command = [sys.executable, "-m", "tokenspeed.bench.static_batch", folder]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, "OMP_NUM_THREADS": str(threads)},
    )
    with process:  # closes its input: it ends
        yield StaticBatch(process)


class _Model:
    """A model of Transformers in float32 that answers a batch of equally long prompts greedily."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.eval()  # type: ignore[no-untyped-call]
        model.generation_config.eos_token_id = None  # every answer has the same length
        self._model: Any = model

    @torch.inference_mode()
    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        clock = _Clock()
        ids = torch.tensor(prompts)
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=steps + 1,
            min_new_tokens=steps + 1,
            do_sample=False,
            pad_token_id=0,
            stopping_criteria=[clock],
        )
        assert len(clock.times) == steps + 1
        return clock.times[-1] - clock.times[0]

    @torch.inference_mode()
    def prefill(self, prompt: Sequence[int]) -> float:
        start = time.perf_counter()
        self._model(torch.tensor([prompt]), logits_to_keep=1).logits.argmax(-1)
        return time.perf_counter() - start


class _Clock:
    """A stopping criterion that never stops; it is asked after each token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def main() -> None:
    """Answer one line with one line until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    model = _Model(sys.argv[1])
    for line in sys.stdin:
        question = json.loads(line)
        seconds = getattr(model, question.pop("do"))(**question)
        print(json.dumps(seconds), file=answers, flush=True)


if __name__ == "__main__":
    main()
