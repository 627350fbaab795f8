# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The CPU platform of TokenSpeed and its kernels. Importing this package imports nothing heavy."""
