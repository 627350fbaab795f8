# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The plugin host: discover, probe, resolve, activate. Nothing here imports torch."""
