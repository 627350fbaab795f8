# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Guesses what requests say next, without a model."""

import numpy as np
from numpy.typing import NDArray

class SuffixDrafter:
    """A ``Drafter`` of the contract: what followed the last tokens where they stood before.

    It looks for them in the request's own text and in the outputs of requests of its namespace that
    have ended, takes the longest match (at least 2 tokens) and of several the continuation that was
    seen most often, then latest; a guess ends where little speaks for it. The published ideas are
    prompt lookup decoding (A. Saxena, 2023) and SuffixDecoding (arXiv 2411.04975).
    """

    def __init__(self, *, max_model_len: int, pool_bytes: int) -> None:
        """
        Args:
            max_model_len: tokens of the longest request; what comes past them is neither kept nor
                guessed. A request holds 12 to 24 bytes a token.
            pool_bytes: memory for the outputs of ended requests of all namespaces; the oldest go
                first. 20 bytes a token, rounded down to a power of two tokens; 0: none are kept.

        Raises:
            ValueError: a number is out of its range.
        """
    def begin(self, request: int, prompt: NDArray[np.int32], *, namespace: int) -> None:
        """A request [0, 2^64) with its prompt [tokens]. One that is there already begins anew."""
    def advance(
        self, request: NDArray[np.uint64], token_start: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> None:
        """Tokens that were accepted: of request i those from token_start[i] to token_start[i + 1].

        Unknown requests are passed over. TypeError, ValueError: the arrays do not belong together;
        nothing has changed then.
        """
    def draft(
        self, request: NDArray[np.uint64], most: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """At most most[i] guesses into the first entries of row i of tokens [n, K].

        Returns:
            How many there are, int32 [n]; 0 of unknown requests.

        Raises:
            TypeError, ValueError: the arrays do not belong together.
        """
    def end(self, request: int) -> None:
        """Releases the request; what was accepted goes to the outputs of its namespace."""
    def requests(self) -> int:
        """How many are there."""
