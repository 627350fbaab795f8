# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""NVIDIA GPUs for TokenSpeed: a platform, and kernels for every op of the trunk."""
