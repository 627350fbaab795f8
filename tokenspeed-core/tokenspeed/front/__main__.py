# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The front process: ``python -m tokenspeed.front``, started by the supervisor alone."""

from __future__ import annotations

import os

from tokenspeed.process.child import start_child


def main() -> None:
    """Serve until SIGTERM."""
    # Before gRPC is loaded: it would warn of each process that is started beside its threads, such
    # as the grammar compiler, where only one that forks and goes on needs its handlers.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    plan, status = start_child()

    import uvloop

    from tokenspeed.front.server import serve
    from tokenspeed.observe.observers import load_observers

    status.phase("load observers")
    with load_observers(plan.plugins) as observers:
        status.phase("wait for the engine")
        uvloop.run(serve(plan, observers, status.send, status.told))


if __name__ == "__main__":
    main()
