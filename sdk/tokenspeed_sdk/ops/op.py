# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the sdk knows about one public op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite


@dataclass(frozen=True)
class Op:
    """A public op: the name that call sites state, and the reference that kernels are tested by.

    Attributes:
        name: "name@major"; a change of meaning takes a new major.
        reference: the naive definition in plain torch; checks its arguments.
        traits: what every call site states.
        keywords: the traits that the reference takes as keyword arguments; the others can be read
            from the shapes, and are stated so that a kernel can be chosen before a call.
    """

    name: str
    reference: Callable[..., Any]
    traits: tuple[str, ...]
    keywords: tuple[str, ...] = ()

    def check_site(self, site: CallSite) -> None:
        """Raise ValueError unless ``site`` states exactly the traits of this op."""
        missing = [trait for trait in self.traits if trait not in site.traits]
        unknown = [trait for trait in site.traits if trait not in self.traits]
        if site.op != self.name or missing or unknown:
            raise ValueError(
                f"call site {site.layer!r} of {site.op} does not fit {self.name}: "
                f"missing traits {missing}, unknown traits {unknown}; "
                f"state exactly {list(self.traits)}"
            )

    def bind_reference(self, site: CallSite) -> BoundKernel:
        """The reference as a kernel for one site. ValueError as in ``check_site``."""
        self.check_site(site)
        return partial(self.reference, **{name: site.traits[name] for name in self.keywords})
