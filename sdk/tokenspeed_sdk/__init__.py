# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The one package that a TokenSpeed plugin imports: contracts, ops, modeling layer, test kit."""
