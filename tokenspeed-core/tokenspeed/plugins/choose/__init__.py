# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""From what is installed to one plan, with reasons. Nothing here runs a plugin."""
