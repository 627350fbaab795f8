# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The sdk's kit: no installed plugin is seen here."""

pytest_plugins = ["tokenspeed_sdk.testing.plugin"]
