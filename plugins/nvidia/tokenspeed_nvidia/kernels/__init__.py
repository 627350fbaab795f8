# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Kernels, one op family a module. Imported when a kernel is bound, never at discovery."""
