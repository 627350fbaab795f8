# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Model families, one file each; the engine imports only the one that a checkpoint names."""
