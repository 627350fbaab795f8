# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""``ts`` with folders laid over the environment.

Nothing is ever installed into the environment itself: a folder on PYTHONPATH adds a wheel, leaving
it out removes it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tokenspeed.bench.served import TS

OURS_DENIED = ("--deny", "model=tokenspeed-models", "--deny", "platform=cpu")
"""Options of a doctor that saves its time for strangers: each of ours is an import of torch."""

_LIMIT_S = 180


def variables(layers: Sequence[Path]) -> dict[str, str]:
    """This process's environment variables with ``layers`` in front of the import path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TOKENSPEED_")}
    path = [*map(str, layers), *filter(None, [kept.pop("PYTHONPATH", "")])]
    return kept | {"PYTHONPATH": os.pathsep.join(path)}


def ts(*arguments: str, layers: Sequence[Path] = ()) -> subprocess.CompletedProcess[str]:
    """Run ``ts`` to its end."""
    return subprocess.run(
        [*TS, *arguments],
        env=variables(layers),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
