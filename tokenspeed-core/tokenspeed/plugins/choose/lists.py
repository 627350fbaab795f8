# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Allow and deny lists: which of the installed plugins a launch may use.

    --allow kernel=cpu,acme     of the kernels only these; other contracts stay free
    --allow kernel=none         no kernels
    --allow none                nothing of any contract, unless another --allow names it
    --deny observer=noisy       anything but this; deny wins over allow

The same entries stand in TOKENSPEED_ALLOW and TOKENSPEED_DENY, separated by ";". A name is that of
a provision in its contract, or the id of its plugin.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from tokenspeed_sdk.contracts.manifest import CONTRACTS

from tokenspeed.plugins.errors import ListError, UnknownNameError, did_you_mean

ALLOW = "TOKENSPEED_ALLOW"
DENY = "TOKENSPEED_DENY"
NONE = "none"
DENIED = "denied: --deny "

Names = dict[str, tuple[str, ...]]


class Lists(msgspec.Struct, frozen=True):
    """Contract -> names.

    Attributes:
        allow: a contract that stands here has nothing else allowed.
        deny: what may not be used, whatever ``allow`` says.
    """

    allow: Names = {}
    deny: Names = {}

    def refusal(self, contract: str, *names: str) -> str | None:
        """Why something that goes by any of these names may not be used; None if it may."""
        for name in names:
            if name in self.deny.get(contract, ()):
                return f"{DENIED}{contract}={name}"
        allowed = self.allow.get(contract)
        if allowed is None or any(name in allowed for name in names):
            return None
        return f"not allowed: --allow {contract}={','.join(allowed) or NONE}"

    def names(self, contract: str, *names: str) -> bool:
        """Whether the operator allowed it by name, rather than by saying nothing."""
        return any(name in self.allow.get(contract, ()) for name in names)

    def text(self) -> str:
        """As one would write it."""
        words = [f"--allow {c}={','.join(names) or NONE}" for c, names in self.allow.items()]
        words += [f"--deny {c}={','.join(names)}" for c, names in self.deny.items()]
        return " ".join(words) or "none"

    def check_names(self, known: Mapping[str, Iterable[str]]) -> None:
        """UnknownNameError for a name that nothing installed goes by, with a suggestion."""
        for option, lists in (("--allow", self.allow), ("--deny", self.deny)):
            for contract, names in lists.items():
                for name in names:
                    if name not in known.get(contract, ()):
                        raise UnknownNameError(
                            f'no installed plugin provides {contract} "{name}"',
                            where=f"{option} {contract}={name}",
                            fix=did_you_mean(name, known.get(contract, ())),
                        )


def gather(
    allow: Sequence[str] | None = None,
    deny: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> Lists:
    """The lists of an operator. ListError, UnknownNameError: an entry that is none.

    Args:
        allow: entries; None takes those of the environment.
        deny: entries, to which those of the environment are added.
    """
    if allow is None:
        allow = split(environment.get(ALLOW, ""))
    return Lists(_parse_allow(allow), _parse("--deny", [*deny, *split(environment.get(DENY, ""))]))


def split(variable: str) -> tuple[str, ...]:
    """The entries of an environment variable."""
    return tuple(entry.strip() for entry in variable.split(";") if entry.strip())


def _parse_allow(entries: Sequence[str]) -> Names:
    base: Names = dict.fromkeys(CONTRACTS, ()) if NONE in entries else {}
    named = _parse("--allow", [entry for entry in entries if entry != NONE])
    return dict(sorted((base | named).items()))


def _parse(option: str, entries: Sequence[str]) -> Names:
    found: dict[str, set[str]] = {}
    for entry in entries:
        contract, equals, text = entry.partition("=")
        names = [name.strip() for name in text.split(",")]
        if not equals or not all(names):
            raise ListError(
                f"{entry!r} is not CONTRACT=NAME[,NAME]",
                where=f"{option} {entry}",
                fix=f"write it as {option} {_example(entry)}; contracts are {', '.join(CONTRACTS)}",
            )
        if "=" in text:
            raise ListError(
                f"{entry!r} names two contracts",
                where=f"{option} {entry}",
                fix=f"give each its own {option}: {option} " + entry.replace(",", f" {option} "),
            )
        if contract not in CONTRACTS:
            raise UnknownNameError(
                f'there is no contract "{contract}"',
                where=f"{option} {entry}",
                fix=did_you_mean(contract, CONTRACTS),
            )
        found.setdefault(contract, set()).update(names)
    if option == "--deny":
        _refuse_none(found)
    _refuse_none_beside_names(found)
    return {contract: tuple(sorted(found[contract] - {NONE})) for contract in sorted(found)}


def _example(entry: str) -> str:
    """What an entry that cannot be read may have meant."""
    contract, equals, names = entry.partition("=")
    if contract in CONTRACTS:
        return f"{contract}={names.strip(' ,') or 'NAME'}"
    return f"kernel={(names if equals else contract).strip(' ,') or 'NAME'}"


def _refuse_none(denied: Mapping[str, set[str]]) -> None:
    for contract, names in denied.items():
        if NONE in names:
            raise ListError(
                f'"{NONE}" is not the name of a {contract} plugin; it belongs to --allow',
                where=f"--deny {contract}={NONE}",
                fix=f"to use no {contract} plugin at all: --allow {contract}={NONE}",
            )


def _refuse_none_beside_names(allowed: Mapping[str, set[str]]) -> None:
    for contract, names in allowed.items():
        if NONE in names and len(names) > 1:
            others = ",".join(sorted(names - {NONE}))
            raise ListError(
                f'"{NONE}" and names of {contract} plugins are both allowed',
                where=f"--allow {contract}={NONE},{others}",
                fix=f"say --allow {contract}={NONE} or --allow {contract}={others}",
            )
