# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Where a plugin's code runs: probed, activated, wired, and held responsible."""
