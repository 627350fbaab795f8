# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Measurements that anybody can repeat: ``ts bench``. Serving never imports this package."""
