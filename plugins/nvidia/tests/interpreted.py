# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Runs the tiny cases under the Triton interpreter and prints one JSON object: name to error.

The interpreter is chosen when a kernel is decorated, so this is a process of its own. bf16 products
are left out: the interpreter of triton 3.6 multiplies their raw bits (fp16 takes the same path).
"""

import json
import os
import sys
import traceback
from collections.abc import Callable

os.environ["TRITON_INTERPRET"] = "1"

import torch
from nvidia_cases import TINY, Where, sample_mismatches

NO_DOT_IN = ("decode", "prefill")


def attempt(case: Callable[[], float | str]) -> float | str:
    """The case's error, or why it failed."""
    try:
        return case()
    except Exception:
        return traceback.format_exc()


def main() -> None:
    torch.manual_seed(int(sys.argv[1]))
    torch.set_num_threads(1)
    results: dict[str, float | str] = {}
    for dtype in ("float32", "float16", "bfloat16"):
        where = Where("cpu", dtype, units=3)
        for name, case in TINY.items():
            if dtype == "bfloat16" and name.startswith(NO_DOT_IN):
                continue
            results[f"{name}:{dtype}"] = attempt(lambda case=case, where=where: case(where))
    where = Where("cpu", "float32", units=3)
    for vocab in (97, 5000):
        wrong = attempt(lambda vocab=vocab: str(sample_mismatches(where, vocab)))
        results[f"sample_{vocab}:float32"] = 0.0 if wrong == "[]" else wrong
    print(json.dumps(results))


if __name__ == "__main__":
    main()
