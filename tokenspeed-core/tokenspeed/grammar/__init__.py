# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Constraints on answers: the backends that are installed, and the process that compiles."""
