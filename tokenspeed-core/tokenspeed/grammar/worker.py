# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Compiles constraints in a process of its own: ``python -m tokenspeed.grammar.worker``.

A grammar may take seconds and gigabytes, and a library may hold the interpreter while it works.
Here nobody waits for it, and it can be ended. Messages are msgpack behind four bytes of length, on
standard input and output: first a Setup, then a Job, phases by name as they begin, and an answer.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

import msgspec
from tokenspeed_sdk.contracts.grammar import Constraint, GrammarError

from tokenspeed.grammar.backends import Backends, Compiled, OpenError, Phase
from tokenspeed.grammar.tools import naming_tools
from tokenspeed.plugins.plan import PluginPlan
from tokenspeed.process.lifeline import tie_to_parent

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.grammar import Vocabulary

MEMORY = 4 << 30
"""Bytes of data that compiling may take."""

LENGTH = struct.Struct("<I")
OPENING: Phase = "opening"
"""The first: it begins with the process, or with the job."""
COMPILING: Phase = "compiling"


class Setup(msgspec.Struct, frozen=True, array_like=True):
    """Attributes:
    parent: process id of who started this one, and whose end ends it.
    model: folder with the tokenizer.
    vocab_size: logits of the model.
    """

    parent: int
    plugins: PluginPlan
    model: str
    vocab_size: int


class Job(msgspec.Struct, frozen=True, array_like=True):
    """A constraint to compile."""

    kind: str
    text: str


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """It compiled."""

    compiled: Compiled


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """It did not; why, for the client."""

    reason: str


class Unable(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """No constraint can be compiled by a backend that this one needs; why, for the operator."""

    reason: str


Answer: TypeAlias = Done | Failed | Unable


def read(stream: BinaryIO) -> bytes | None:
    """The next message; None at the end."""
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def framed(message: bytes) -> bytes:
    """A message behind its length."""
    return LENGTH.pack(len(message)) + message


def main() -> None:
    """Until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's, which then ends this process
    incoming = sys.stdin.buffer
    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is for people
    setup = msgspec.msgpack.decode(read(incoming) or b"", type=Setup)
    tie_to_parent(setup.parent)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    backends = Backends(setup.plugins, lambda: _vocabulary(setup))

    def send(message: bytes) -> None:
        outgoing.write(framed(message))
        outgoing.flush()

    while (message := read(incoming)) is not None:
        job = msgspec.msgpack.decode(message, type=Job)
        constraint = Constraint(job.kind, job.text)
        answer: Answer
        try:
            answer = Done(backends.compile(constraint, lambda phase: send(phase.encode())))
        except OpenError as error:
            answer = Unable(str(error))
        except GrammarError as error:
            answer = Failed(naming_tools(constraint, str(error)))
        except (OSError, ValueError) as error:  # of the vocabulary
            answer = Unable(str(error))
        except MemoryError:
            answer = Failed(f"compiling it takes more than {MEMORY >> 30} GiB")
        send(msgspec.msgpack.encode(answer))


def _vocabulary(setup: Setup) -> Vocabulary:
    from tokenspeed.front.model_folder import ModelFolder
    from tokenspeed.grammar.vocabulary import read_vocabulary

    return read_vocabulary(ModelFolder(setup.model), setup.vocab_size)


if __name__ == "__main__":
    main()
