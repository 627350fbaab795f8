# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What one call of a kernel may and must do, beside the reference of its op."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite, HostStep, PlannedKernel
from tokenspeed_sdk.ops import OPS
from tokenspeed_sdk.testing.kernel.cases import Call, Facts
from tokenspeed_sdk.testing.kernel.memory import FreshMemory, Watch, bits

LONE = 4
"""An element may be off by so many bounds of itself and of their root mean square: the norm of many
elements hides a few."""


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """||out - ref|| / ||ref||; infinite where either holds what is not a number."""
    wide, right = out.to(reference.device, torch.float64), reference.double()
    if not bool(wide.isfinite().all() & right.isfinite().all()):
        return float("inf")
    return float((wide - right).norm() / right.norm().clamp_min(1e-30))


class CallCheck:
    """Expectations of one call, and what did not meet them."""

    def __init__(self, site: CallSite, facts: Facts, bound: float, call: Call) -> None:
        self.bound = bound
        self.error = 0.0
        self.problems: list[str] = []
        self._site = site
        self._facts = facts
        self._call = call
        self._watch = Watch(call.args)
        self._wanted = [self._reference_arg(i, arg) for i, arg in enumerate(call.args)]
        op = OPS[site.op]
        keywords = {name: site.traits[name] for name in op.keywords}
        self._result = op.reference(*self._wanted, **keywords)

    def run(self, bound: BoundKernel, args: Sequence[Any]) -> Any:
        """Call it; ``args`` are those of the call, the weight packed. Returns what it returned."""
        fresh = FreshMemory()
        try:
            with fresh:
                out = _invoke(bound, self._site.op, args)
        except TypeError as error:
            if _takes(bound, args):
                raise
            self.problems.append(_arity_problem(self._site.op, args, error))
            return None
        if fresh.overrun():
            self.problems.append("writes past the end of memory that it allocated")
        self._compare_result(out)
        for index in self._facts.changed:
            self._compare_changed(index)
        self._compare_rest()
        return out

    def _reference_arg(self, index: int, arg: Any) -> Any:
        """A copy for the reference; floating ones in float64 where results are rounded."""
        if not isinstance(arg, torch.Tensor):
            return arg
        kept = not self._facts.bounds or index in self._facts.kept or not arg.is_floating_point()
        where = arg.device if _has_float64(str(arg.device)) else torch.device("cpu")
        return arg.to(where, arg.dtype if kept else torch.float64, copy=True)

    def _compare_result(self, out: Any) -> None:
        if self._result is None or not isinstance(out, torch.Tensor):
            if out is not None or self._result is not None:
                wanted = "nothing" if self._result is None else "a tensor"
                self.problems.append(f"returns {type(out).__name__} where the op returns {wanted}")
            return
        differences = self._form_differences(out)
        if differences:
            self.problems += differences
            return
        if self._watch.holds(out):
            self.problems.append("the result lies in the memory of an argument")
        self._compare("the result", out, self._result)

    def _form_differences(self, out: torch.Tensor) -> list[str]:
        """Where shape, dtype, device or strides of the result are not as they must be."""
        form = OPS[self._site.op].result
        assert form is not None  # the reference returned a tensor
        shape, dtype = form(self._site.traits, *self._call.args)
        device = self._call.args[0].device
        differences = [
            f"the result has {what} {found}, not {wanted}"
            for what, found, wanted in (
                ("shape", tuple(out.shape), tuple(shape)),
                ("dtype", out.dtype, dtype),
                ("device", out.device, device),
            )
            if found != wanted
        ]
        if not out.is_contiguous():
            differences.append(f"the result is not contiguous, it has strides {out.stride()}")
        return differences

    def _compare_changed(self, index: int) -> None:
        """An argument that changes in place, but for what may hold anything."""
        what = f"argument {index}, changed in place,"
        out, wanted = self._call.args[index].clone(), self._wanted[index]
        for argument, part in self._call.free:
            if argument == index:
                bits(out)[part], bits(wanted)[part] = 0, 0
        if not self._facts.bounds:
            self._compare_bits(what, out, wanted)
            return
        poison = wanted.isnan()
        touched = poison & ~out.to(wanted.device).isnan()
        if bool(touched.any()):
            self.problems.append(f"{what} is written where it must not be{_where(touched)}")
            return
        bits(out)[poison.to(out.device)], bits(wanted)[poison] = 0, 0  # 0.0 in every dtype
        if index in self._facts.exact:
            self._compare_bits(what, out, wanted.to(out.dtype))
        else:
            self._compare(what, out, wanted)

    def _compare_bits(self, what: str, out: torch.Tensor, wanted: torch.Tensor) -> None:
        differs = bits(out.to(wanted.device).contiguous()) != bits(wanted.contiguous())
        if bool(differs.any()):
            self.problems.append(f"{what} differs from the reference{_where(differs)}")

    def _compare(self, what: str, out: torch.Tensor, wanted: torch.Tensor) -> None:
        if not self._facts.bounds:
            self._compare_bits(what, out, wanted)
            return
        wanted = wanted.double()
        error = relative_error(out, wanted)
        self.error = max(self.error, error)
        far = (out.to(wanted.device, torch.float64) - wanted).abs()
        typical = wanted.square().mean().sqrt()
        lone = ~(far <= LONE * self.bound * (wanted.abs() + typical))
        if not error <= self.bound:
            self.problems.append(
                f"{what} is off by {error:.1e} of the reference's norm, at most "
                f"{self.bound:.0e} is allowed{_where(lone)}"
            )
        elif bool(lone.any()):
            self.problems.append(f"{what} has a few elements that are far off{_where(lone)}")
        elif wanted.dim() > 1 and wanted.numel():
            nobodys = ~wanted.flatten(1).any(1)
            if bool((out.to(wanted.device)[nobodys] != 0).any()):
                self.problems.append(f"{what} is not zero in rows that belong to nobody")

    def _compare_rest(self) -> None:
        args = self._call.args
        allowed = [args[index] for index in self._facts.changed]
        changed = self._watch.changed_outside(allowed)
        if changed is not None:
            self.problems.append(
                f"writes to memory that is not its own, {int(changed.sum())} elements"
            )


def _where(wrong: torch.Tensor) -> str:
    """The first rows in which elements are wrong."""
    if not wrong.dim():
        return ""
    rows = wrong.flatten(1).any(1) if wrong.dim() > 1 else wrong
    found: list[int] = rows.nonzero().flatten().tolist()
    more = ", ..." if len(found) > 5 else ""
    return f" (rows {', '.join(map(str, found[:5]))}{more} of {len(rows)})" if found else ""


def _takes(bound: BoundKernel, args: Sequence[Any]) -> bool:
    """Whether the callable has parameters for these arguments, or does not tell."""
    try:
        signature = inspect.signature(bound)
    except (TypeError, ValueError):  # code of another language may have none
        return True
    keywords: dict[str, Any] = {"plan": None} if isinstance(bound, PlannedKernel) else {}
    try:
        signature.bind(*args, **keywords)
    except TypeError:
        return False
    return True


def _arity_problem(op: str, args: Sequence[Any], error: TypeError) -> str:
    names = ", ".join(parameter.name for parameter in OPS[op].parameters[: len(args)])
    return f"the op passes {len(args)} arguments: {names}; the kernel takes others: {error}"


def _invoke(bound: BoundKernel, op: str, args: Sequence[Any]) -> Any:
    """The call, planned first where the kernel wants it, as the engine does."""
    if not isinstance(bound, PlannedKernel):
        return bound(*args)
    q, _, _, page_table, row_slot, *others, scale = args
    lengths = [value for value in others if value.dtype == torch.int32]
    if op.startswith("attention_decode"):
        lengths.insert(0, torch.arange(len(q) + 1, dtype=torch.int32))
    query_start, kv_len = (value.cpu() for value in lengths)
    plan = bound.plan(HostStep(query_start, kv_len, page_table, row_slot), scale)
    return bound(*args, plan=plan)


@cache
def _has_float64(device: str) -> bool:
    """Whether references can run on a device."""
    try:
        torch.ones(1, dtype=torch.float64, device=device).sum().item()
    except (RuntimeError, TypeError):
        return False
    return True
