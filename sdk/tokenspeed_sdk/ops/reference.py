# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A resolver that answers every call site with the op's reference: slow, right by definition."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tokenspeed_sdk.contracts.kernel import Binding, CallSite
from tokenspeed_sdk.ops.catalog import OPS


class ReferenceResolver:
    """A KernelResolver for tests and for authors who have no kernel yet.

    Args:
        fuse: whether the references of fused ops serve, too. They are no faster than their parts:
            for tests of what a model does with them.
    """

    _fuse = False  # for a subclass that does not call __init__

    def __init__(self, *, fuse: bool = False) -> None:
        self._fuse = fuse

    def bind(self, site: CallSite) -> Binding:
        """The reference of the op.

        Raises:
            LookupError: no such public op.
            ValueError: the site does not state exactly the traits of the op.
        """
        op = OPS.get(site.op)
        if op is None:
            raise LookupError(
                f"call site {site.layer!r} asks for {site.op!r}, which is no public op; "
                f"use one of {', '.join(OPS)}"
            )
        return Binding("reference", op.bind_reference(site), _plain)

    def bind_fused(self, site: CallSite, parts: Collection[str]) -> Binding | None:
        """None, unless it was made to fuse. Raises as ``bind``."""
        return self.bind(site) if self._fuse else None


def _plain(weight: Any) -> Any:
    return weight
