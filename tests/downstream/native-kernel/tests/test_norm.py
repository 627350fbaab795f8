# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The sdk's kit on the kernel of the installed library."""

from __future__ import annotations

from acme_norm import kernels
from tokenspeed_sdk.testing import kernel_conformance

test_kernels = kernel_conformance(kernels)
