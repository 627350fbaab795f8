# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Engine, front or gateway of a fake server. What it does is said by FAKE_<ROLE>:

    nothing        live until SIGTERM
    raise TEXT     fail at once with an exception
    raise-again    (engine) the same, when it is started anew; the front waits a second for it
    segv [TEXT]    die of a signal, having printed a line; TEXT is what it was doing
    exit           end with 0 though nobody told it to
    obey           end with 0 because another child told it to
    slow           (engine) the front waits a second for it
    fall           end with an error shortly after the engine has died
    deaf           ignore SIGTERM
    talk           (engine) print a megabyte, then live
    unready        (gateway) say that it is not ready

A front drains for FAKE_DRAIN seconds; less than none: it never says that it has, or with
FAKE_DRAIN_HURRIED when it is asked again.

Each start and stop is a line in the file FAKE_LOG; of a front also which ports it was told, that
it has drained, and why another child ended.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import sys
import time
from pathlib import Path

from tokenspeed.process.child import Status, read_arguments, start_child
from tokenspeed.process.failure import DRAIN
from tokenspeed.process.lifeline import tie_to_parent


def log(*words: object) -> None:
    with open(os.environ["FAKE_LOG"], "a") as file:
        print(*words, file=file)


class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        unready = os.environ.get("FAKE_GATEWAY") == "unready" or self.path != "/readiness"
        self.send_response(503 if unready else 200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def wait_for_both() -> None:
    """Until engine and front are through their start: who fails then, fails together."""
    log_file = Path(os.environ["FAKE_LOG"])
    while not {"up engine", "up front"} <= set(log_file.read_text().splitlines()):
        time.sleep(0.01)


def is_second(role: str) -> bool:
    return Path(os.environ["FAKE_LOG"]).read_text().count(f"up {role}\n") > 1


def start(role: str) -> Status:
    if role != "gateway":
        plan, status = start_child()
        if role == "front":
            log("ports", plan.front.grpc_port, plan.front.admin_port)
            drain_when_asked(status)
        return status
    arguments = read_arguments()
    tie_to_parent(arguments.parent)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return Status(arguments.status_fd, arguments.note_fd)


def drain_when_asked(status: Status) -> None:
    seconds = float(os.environ.get("FAKE_DRAIN", "0"))

    asked = 0

    def drain(*_: object) -> None:
        nonlocal asked
        asked += 1
        log("asked to drain")
        if asked > 1 and "FAKE_DRAIN_HURRIED" in os.environ:
            log("drained")
            status.send({"event": "drained"})
        elif seconds >= 0:
            time.sleep(seconds)
            log("drained")
            status.send({"event": "drained"})

    signal.signal(DRAIN, drain)


def live(role: str) -> None:
    if role == "gateway":
        with open(read_arguments().plan_fd) as file:
            words = json.load(file)
        port = int(words[words.index("--port") + 1])
        http.server.HTTPServer(("127.0.0.1", port), Ready).serve_forever()
    while True:
        time.sleep(60)


def main() -> None:
    role = read_arguments().role
    log("start", role, os.getpid())
    status = start(role)
    log("up", role)
    act, _, text = os.environ.get(f"FAKE_{role.upper()}", "").partition(" ")
    if role == "engine":
        status.phase("thinks")
    if role == "front":
        status.phase("wait for the engine")
        wait_for_both()
        time.sleep(os.environ.get("FAKE_ENGINE", "").startswith(("slow", "raise-again")))
        status.send({"event": "ready", "grpc_port": 1, "admin_port": 2})
    if act == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif act == "raise" or (act == "raise-again" and is_second(role)):
        wait_for_both()
        raise ValueError(text)
    elif act == "segv":
        print("about to fall", file=sys.stderr, flush=True)
        status.doing("something else, and for much longer")
        status.doing(text)
        os.kill(os.getpid(), signal.SIGSEGV)
    elif act in ("exit", "obey"):
        wait_for_both()
        if act == "obey":
            status.send({"event": "ending"})
        sys.exit(0)
    elif act == "talk":
        for _ in range(1000):
            print("x" * 999, flush=True)
        log("talked")
    elif act == "fall":
        wait_for_both()
        time.sleep(0.1)
        sys.exit(3)
    try:
        live(role)
    finally:
        time.sleep(0.05)  # so that an order of stops that is not kept shows
        log("stop", role)
        if role == "front":
            log("told", status.told())


if __name__ == "__main__":
    main()
