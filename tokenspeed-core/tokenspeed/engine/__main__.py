# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The engine process: ``python -m tokenspeed.engine``, started by the supervisor alone."""

from __future__ import annotations

from tokenspeed.process.child import start_child


def main() -> None:
    """Serve until the front says stop."""
    plan, status = start_child()
    from tokenspeed.plugins.load.activate import load_platform

    status.phase("load the platform")
    platform = load_platform(plan.plugins)
    platform.prepare(plan.engine.threads)  # before torch is imported, by the line below
    from tokenspeed.engine.start import start_engine

    with start_engine(plan, platform, status.doing, status.phase) as loop:
        status.phase("serve")
        loop.run()
    status.send({"event": "ending"})


if __name__ == "__main__":
    main()
