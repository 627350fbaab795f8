# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What happens in a server, as events: metrics are counted from them, observers are told them."""
