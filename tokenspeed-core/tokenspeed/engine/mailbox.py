# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The engine's end of the socket to the front."""

from __future__ import annotations

import msgspec
import zmq

from tokenspeed.messages import EngineInput, FromEngine

_READABLE = int(zmq.POLLIN)


class Mailbox:
    """One message a step each way. Sending never blocks; waiting happens without the GIL."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.connect(address)
        self._decoder = msgspec.msgpack.Decoder(EngineInput)
        self._encoder = msgspec.msgpack.Encoder()

    def receive(self, timeout_ms: int | None) -> list[EngineInput]:
        """All messages that have come; waits for a first one, up to ``timeout_ms`` if given."""
        if timeout_ms != 0:
            self._socket.poll(timeout_ms)
        messages = []
        while int(self._socket.getsockopt(zmq.EVENTS)) & _READABLE:
            messages.append(self._decoder.decode(self._socket.recv()))
        return messages

    def send(self, message: FromEngine) -> None:
        """Queue a message to the front."""
        self._socket.send(self._encoder.encode(message))

    def close(self) -> None:
        """Send what is queued, at most one second, and close."""
        self._socket.close()
        self._context.term()
