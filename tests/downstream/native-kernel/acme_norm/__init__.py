# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""rms_norm@1 in a library; ``src/norm.c`` is all of it."""

from tokenspeed_sdk.native import native_kernels

kernels = native_kernels("acme_norm", "libacme_norm.so")
