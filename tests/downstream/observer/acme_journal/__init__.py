# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Every event of a server as a line of JSON in the file that ACME_JOURNAL names."""

from __future__ import annotations

import dataclasses
import json
import os
import sys

from tokenspeed_sdk.contracts.observer import (
    Event,
    LoadReported,
    RequestFinished,
    RequestReceived,
    SequenceStarted,
    ServerReady,
    StepFinished,
    TokensGenerated,
)

VARIABLE = "ACME_JOURNAL"


class Journal:
    """Has every hook; each line is written at once, so that nothing is lost when all ends."""

    def __init__(self) -> None:
        path = os.environ.get(VARIABLE)
        self._file = open(path, "a", buffering=1) if path else sys.stderr  # noqa: SIM115 (close)

    def server_ready(self, event: ServerReady) -> None:
        self._write(event)

    def request_received(self, event: RequestReceived) -> None:
        self._write(event)

    def sequence_started(self, event: SequenceStarted) -> None:
        self._write(event)

    def tokens_generated(self, event: TokensGenerated) -> None:
        self._write(event)

    def request_finished(self, event: RequestFinished) -> None:
        self._write(event)

    def step_finished(self, event: StepFinished) -> None:
        self._write(event)

    def load_reported(self, event: LoadReported) -> None:
        self._write(event)

    def close(self) -> None:
        """The server ends."""
        if self._file is not sys.stderr:
            self._file.close()

    def _write(self, event: Event) -> None:
        print(json.dumps({"hook": event.hook, **dataclasses.asdict(event)}), file=self._file)
