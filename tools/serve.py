# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Bring the demo model when it is not there yet, and serve it. Arguments go to ``ts serve``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import demo_model


def main() -> None:
    """Become ``ts serve``: its exit status and signals are ours."""
    folder = demo_model.ensure()
    print(f"The demo model lies in {folder}", flush=True)
    command = Path(sys.executable).with_name("ts")
    template = Path(__file__).with_name("demo_chat.jinja")  # the model's own has no tools
    arguments = [str(folder), "--chat-template", str(template), *sys.argv[1:]]
    os.execv(command, [str(command), "serve", *arguments])


if __name__ == "__main__":
    main()
