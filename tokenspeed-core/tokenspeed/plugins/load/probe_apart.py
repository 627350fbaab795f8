# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Ask a platform in a process of its own, so that one that crashes ends no launch.

    python -m tokenspeed.plugins.load.probe_apart RESULT FD    # a Planned as JSON on standard input

The protocol is that of ``separate.run_apart``.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from pathlib import Path

import msgspec
from tokenspeed_sdk.contracts.probe import Accept, Decline

from tokenspeed.plugins.choose.platforms import Probed
from tokenspeed.plugins.discover.origin import mend
from tokenspeed.plugins.errors import LoadError
from tokenspeed.plugins.load import probe
from tokenspeed.plugins.load.separate import run_apart
from tokenspeed.plugins.plan import Planned


def probe_apart(planned: Planned) -> Probed:
    """What it answers; a LoadError when it raises, ends its process or takes too long."""
    ended = run_apart(__name__, planned, probe.BUDGET)
    if ended.answer:  # and what it printed is for people: standard output is the command's
        sys.stderr.write("".join(f"{line}\n" for line in ended.tail))
        return _decode(planned, ended.answer)
    if ended.status is None:
        return Probed(planned, False, probe.too_slow(planned))
    return Probed(
        planned,
        False,
        LoadError(
            "\n  ".join([f"{probe.told(planned)} {ended.how}", *ended.tail]),
            where=probe.WHERE,
            fix=f"deny it: --deny platform={planned.name}, or {mend(planned.distribution)}",
        ),
    )


def _encode(probed: Probed) -> bytes:
    """In the standard library's JSON, which has no largest integer."""
    outcome = probed.outcome
    if isinstance(outcome, LoadError):
        said: dict[str, object] = {"error": (outcome.what, outcome.where, outcome.fix)}
    elif isinstance(outcome, Accept):
        said = {"why": outcome.why, "score": outcome.score}
    else:
        said = {"why": outcome.why}
    return json.dumps({"embedded": probed.embedded, **said}).encode()


def _decode(planned: Planned, answer: bytes) -> Probed:
    said = json.loads(answer)
    outcome: Accept | Decline | LoadError
    if "error" in said:
        what, where, fix = said["error"]
        outcome = LoadError(what, where=where, fix=fix)
    elif "score" in said:
        outcome = Accept(said["score"], said["why"])
    else:
        outcome = Decline(said["why"])
    return Probed(planned, said["embedded"], outcome)


def main() -> None:
    """The process of its own."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's; what is raised is the plugin's
    planned = msgspec.json.decode(sys.stdin.buffer.read(), type=Planned)
    os.write(int(sys.argv[2]), b".")
    answer = _encode(probe.ask(planned))
    Path(sys.argv[1]).write_bytes(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # whatever threads the plugin started


if __name__ == "__main__":
    main()
