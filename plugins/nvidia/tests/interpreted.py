# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The kit's tests of the Triton kernels, for a pytest of their own under Triton's interpreter.

The interpreter is chosen when a kernel is decorated, so ``test_interpreter.py`` starts it. bf16
products are left out: the interpreter of triton 3.6 multiplies their raw bits (fp16 takes the same
path).
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

assert os.environ["TRITON_INTERPRET"] == "1", "run test_interpreter.py"

from tokenspeed_sdk.testing import H100, TINY, kernel_conformance

from tokenspeed_nvidia.catalog import kernels

FEW_UNITS = replace(H100, units=3)
"""So that decode splits rows."""

PRODUCTS = ("attention_decode@1", "attention_prefill@1")
FEW_ROWS = sorted({kernel.op for kernel in kernels() if kernel.name == "few_rows"})
MANY_CASES = ("rope_kv_write@1",)
OTHERS = {kernel.op for kernel in kernels() if kernel.name in ("triton", "cublas")}
OTHERS -= {*PRODUCTS, *MANY_CASES}
ONE_SHAPE = replace(TINY, heads=TINY.heads[:1], windows=(None,))

conforms = partial(kernel_conformance, kernels, capabilities=FEW_UNITS, names=["triton", "cublas"])
test_attention = conforms(ops=PRODUCTS, grid=TINY, dtypes=["float32"])
test_half_attention = conforms(ops=PRODUCTS, grid=ONE_SHAPE, dtypes=["float16"])
test_many_cases = conforms(ops=MANY_CASES, grid=ONE_SHAPE, dtypes=["float32"])
test_few_rows = conforms(ops=FEW_ROWS, grid=TINY, dtypes=["float16"], names=["few_rows"])
test_others = conforms(ops=sorted(OTHERS), grid=replace(TINY, vocabs=(4500,)))
