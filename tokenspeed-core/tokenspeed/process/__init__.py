# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Processes of one server: supervisor, engine, front, gateway."""
