# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""One engine rank: mailbox, scheduler, executor, and the loop that joins them."""
