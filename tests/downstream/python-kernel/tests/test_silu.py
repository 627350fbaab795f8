# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The kernel against the definition of its op."""

from __future__ import annotations

import torch
from acme_silu import AcmeSilu, kernels
from tokenspeed_sdk.contracts import Decline
from tokenspeed_sdk.contracts.kernel import CallSite
from tokenspeed_sdk.contracts.platform import Capabilities
from tokenspeed_sdk.testing import kernel_conformance

torch.set_num_threads(1)

test_kernels = kernel_conformance(kernels)


def test_another_device_is_declined() -> None:
    device = Capabilities("cuda", "sm_90", ("bfloat16",), frozenset(), 132)
    site = CallSite("silu_and_mul@1", "mlp.act", "bfloat16", device, {"inter": 96})
    assert AcmeSilu().accept(site) == Decline("runs on the CPU; the site is on cuda")
