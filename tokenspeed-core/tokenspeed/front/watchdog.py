# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""An engine that has work and says nothing is said in the log, with whose work it is."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tokenspeed.front.engine_client import EngineClient

log = logging.getLogger(__name__)

LOOK_S = 5.0
MOST_NAMES = 8


async def warn_of_silence(client: EngineClient) -> NoReturn:
    """Look for ever; once for each silence, which the engine's own watchdog may explain."""
    told = False
    while True:
        await asyncio.sleep(LOOK_S)
        if client.stalled and not told:
            names = client.names(MOST_NAMES)
            more = client.alive - len(names)
            log.warning(
                "the engine has said nothing for %.0f s; it has %s%s",
                client.silent_s,
                "; ".join(names),
                f"; and {more} more" if more else "",
            )
        told = client.stalled
