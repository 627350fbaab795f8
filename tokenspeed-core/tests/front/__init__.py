# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Tests of the front, without weights and without the compiled scheduler."""
