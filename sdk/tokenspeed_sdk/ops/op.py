# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the sdk knows about one public op."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite
from tokenspeed_sdk.ops.examples import Example

if TYPE_CHECKING:
    import torch

Traits: TypeAlias = Mapping[str, Any]


Result: TypeAlias = "tuple[Sequence[int], torch.dtype]"
"""Shape and dtype of what a call returns, in fresh memory on the device of its first argument."""

_NUMBERS: Mapping[str, type[int] | type[float]] = {"int": int, "float": float}


@dataclass(frozen=True)
class Parameter:
    """One argument of an op.

    Attributes:
        number: its type if it is a number; None for a tensor.
        optional: whether None may stand for it, or it be left out at the end; annotated so.
    """

    name: str
    number: type[int] | type[float] | None
    optional: bool


@dataclass(frozen=True)
class Op:
    """A public op: the name that call sites state, and the reference that kernels are tested by.

    Attributes:
        name: "name@major"; a change of meaning takes a new major.
        reference: the naive definition in plain torch; checks its arguments. Its positional
            parameters are the op's arguments: tensors first, then numbers.
        traits: what every call site states.
        keywords: the traits that the reference takes as keyword arguments; the others can be read
            from the shapes, and are stated so that a kernel can be chosen before a call.
        result: what a call returns, from the site's traits and the arguments, where a weight may
            be packed; None for an op that only writes in place.
        example: arguments of one or more calls at a site, for a number of rows and a torch device,
            on which kernels may be measured; None for an op whose kernels are not.
    """

    name: str
    reference: Callable[..., Any]
    traits: tuple[str, ...]
    keywords: tuple[str, ...] = ()
    result: Callable[..., Result] | None = None
    example: Example | None = None

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The arguments of a call in their order."""
        return tuple(
            Parameter(
                parameter.name,
                number=_NUMBERS.get(str(parameter.annotation)),
                optional=str(parameter.annotation).endswith("| None"),
            )
            for parameter in inspect.signature(self.reference).parameters.values()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        )

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

    def check_result(self, site: CallSite, args: Sequence[Any], returned: Any) -> None:
        """Raise ValueError unless a kernel returned what ``result`` says for these arguments."""
        wanted = self.result and self.result(site.traits, *args)
        expected = "None" if wanted is None else _describe(*wanted)
        if (found := _describe_any(returned)) != expected:
            raise ValueError(
                f"{self.name} at {site.layer!r} must return {expected}; the kernel returned {found}"
            )

    def bind_reference(self, site: CallSite) -> BoundKernel:
        """The reference as a kernel for one site. ValueError as in ``check_site``."""
        self.check_site(site)
        return partial(self.reference, **{name: site.traits[name] for name in self.keywords})


def _describe(shape: Sequence[int], dtype: torch.dtype) -> str:
    return f"{list(shape)} of {str(dtype).removeprefix('torch.')}"


def _describe_any(value: Any) -> str:
    """A tensor by shape and dtype, anything else by what it is."""
    if value is None:
        return "None"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _describe(value.shape, value.dtype)
    return f"a {type(value).__name__}"
