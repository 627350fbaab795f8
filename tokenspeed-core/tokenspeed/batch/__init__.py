# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""``ts batch``: files of requests, answered in order, in any number of runs."""
