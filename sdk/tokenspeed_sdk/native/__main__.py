# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""``python -m tokenspeed_sdk.native`` prints the folder of the header, for build systems."""

from tokenspeed_sdk.native import include_dir

print(include_dir())
