# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What may be captured: calls that launch, and read nothing back from the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tokenspeed_sdk.contracts.kernel import Binding, CallSite
from tokenspeed_sdk.ops.reference import ReferenceResolver

READS = frozenset(
    {
        torch.Tensor.tolist,
        torch.Tensor.numpy,
        torch.ops.aten._local_scalar_dense.default,  # item, int, bool
        torch.ops.aten.is_nonzero.default,
        torch.ops.aten.equal.default,
        torch.ops.aten.nonzero.default,  # the shape of what comes out depends on what goes in
        torch.ops.aten.masked_select.default,
        torch.ops.aten._unique2.default,
        torch.ops.aten.repeat_interleave.Tensor,
    }
)
"""What waits for the device."""


class Launches:
    """Watches what a drafter's model calls; kernels are the references, which read as they like.

    Attributes:
        resolver: of the kernels.
    """

    def __init__(self) -> None:
        self._inside = False
        self.resolver = _Resolver(self)

    @contextmanager
    def only(self) -> Iterator[None]:
        """AssertionError: what is called within reads something back."""
        with _WatchingTensors(self), _WatchingOps(self):
            yield

    def call(self, kernel: Any, *args: Any, **options: Any) -> Any:
        """A kernel's call."""
        inside, self._inside = self._inside, True
        try:
            return kernel(*args, **options)
        finally:
            self._inside = inside

    def check(self, called: Any) -> None:
        """A call of torch."""
        assert self._inside or called not in READS, (
            f"{getattr(called, '__name__', called)} reads from the device, which a captured step "
            f"cannot; compute with tensors, such as torch.where, and take shapes from what the "
            f"host knows"
        )


class _WatchingOps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, launches: Launches) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._launches = launches

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._launches.check(func)
        return func(*args, **(kwargs or {}))


class _WatchingTensors(TorchFunctionMode):
    """``tolist`` and ``numpy`` are no ops."""

    def __init__(self, launches: Launches) -> None:
        super().__init__()
        self._launches = launches

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._launches.check(func)
        return func(*args, **(kwargs or {}))


class _Resolver(ReferenceResolver):
    def __init__(self, launches: Launches) -> None:
        super().__init__()
        self._launches = launches

    def bind(self, site: CallSite) -> Binding:
        bound = super().bind(site)
        return replace(bound, call=partial(self._launches.call, bound.call))
