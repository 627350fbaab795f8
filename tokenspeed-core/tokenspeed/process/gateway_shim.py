# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Runs the gateway as a child that dies with its parent.

"python -m smg launch" runs inside this process rather than being exec'd: an API key among its
arguments would show in the process list.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

from tokenspeed.process.child import read_arguments
from tokenspeed.process.lifeline import tie_to_parent


def main() -> None:
    arguments = read_arguments()
    tie_to_parent(arguments.parent)
    os.set_inheritable(arguments.status_fd, False)
    with open(arguments.plan_fd, "rb") as file:
        gateway_arguments = json.load(file)
    sys.argv = ["smg", "launch", *gateway_arguments]
    runpy.run_module("smg", run_name="__main__")


if __name__ == "__main__":
    main()
