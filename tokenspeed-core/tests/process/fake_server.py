# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""``ts serve`` with fake children: prints SERVING once it serves."""

from __future__ import annotations

import os
import sys

from tokenspeed.config import EngineConfig, FrontConfig
from tokenspeed.process import gateway, supervisor
from tokenspeed.process.launch import plan_launch, private_ipc
from tokenspeed.process.outlet import last_words
from tokenspeed.process.ports import any_free

supervisor.ENGINE = supervisor.FRONT = gateway.MODULE = "fake_child"
supervisor._STOP_GRACE = float(os.environ.get("FAKE_GRACE", "5"))
supervisor._AFTERMATH = float(os.environ.get("FAKE_AFTERMATH", "0.3"))
supervisor._REMINDER = float(os.environ.get("FAKE_REMINDER", "30"))
supervisor._DRAIN_SLACK = 0.3
supervisor._GATEWAY_PATIENCE = float(os.environ.get("FAKE_PATIENCE", "20"))


def main() -> None:
    engine = EngineConfig(model="none", platform="fake")
    drain = float(os.environ.get("FAKE_DRAIN_TIMEOUT", "20"))
    front = FrontConfig(model="none", served_model_name="none", drain_timeout=drain)
    restarts = int(os.environ.get("FAKE_RESTARTS", "0"))
    http = gateway.GatewayConfig(port=any_free("127.0.0.1"))
    with private_ipc() as ipc:
        plan = plan_launch(engine, front, ipc)
        if "FAKE_CHILD_PATH" in os.environ:
            os.environ["PYTHONPATH"] = os.environ["FAKE_CHILD_PATH"]
        try:
            supervisor.serve(
                plan, http, lambda ready: print("SERVING", ready, flush=True), restarts=restarts
            )
        except supervisor.ChildFailedError as error:
            last_words(str(error))
            sys.exit(1)


main()
