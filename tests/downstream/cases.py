# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The table: each broken plugin, and what is to be said about it.

A plugin that nothing stands on costs a warning; one that was pinned, named, or is the only one for
the model or the device stops the launch with cause, owner and remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .broken import (
    ARCHITECTURE,
    LIBRARY,
    OP,
    kernel,
    library,
    model,
    native,
    no_library,
    observer,
    platform,
)
from .sites import Plugin


@dataclass(frozen=True, kw_only=True)
class Case:
    """One broken plugin.

    Attributes:
        plugin: what is installed.
        complete: adds files to its package.
        finding: what ``ts plugins doctor`` says of it; empty where nothing is wrong until it runs.
        warning: what a start that does not stand on it says, first the head of the only warning;
            empty where that start never asks it, or says just what the doctor does.
        choose: options of a start that stands on it; a model is chosen by the folder.
        refusal: what that start says; empty where it cannot be chosen, or the start is right.
        blocks: what any start says until ``unblock`` is among its options.
    """

    plugin: Plugin
    complete: Callable[[Path], None] | None = None
    finding: tuple[str, ...] = ()
    warning: tuple[str, ...] = ()
    choose: tuple[str, ...] = ()
    refusal: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    unblock: tuple[str, ...] = ()

    def install(self, site: Path) -> None:
        """Write it into a folder of the import path."""
        folder = self.plugin.write(site)
        if self.complete is not None:
            self.complete(folder)


def pin(name: str) -> tuple[str, ...]:
    return ("--pin", f"{OP}={name}")


def remove(name: str) -> str:
    return f"pip uninstall acme-{name}"


def upgrade(distribution: str) -> str:
    return f"pip install --upgrade {distribution}"


UNREADABLE: dict[str, Case] = {
    "format-9": Case(
        plugin=kernel("format-9", format="9.0"),
        finding=("has format 9.0; this engine reads 1.0", upgrade("tokenspeed-core")),
        choose=pin("format-9"),
        refusal=("acme-format-9 has format 9.0; this engine reads 1.0", f"kernel {OP}=format-9"),
    ),
    "contract-9": Case(
        plugin=kernel("contract-9", number="9.9"),
        finding=("contract number 9.9; this engine serves 1.0", upgrade("tokenspeed-core")),
        choose=pin("contract-9"),
        refusal=("acme-contract-9 1.0", "contract number 9.9; this engine serves 1.0"),
    ),
    "reserved": Case(
        plugin=Plugin(
            distribution="acme-reserved",
            contract="kv_store",
            name="reserved",
            number="0.0",
            code="make = None",
        ),
        finding=("is reserved: no engine serves it yet", remove("reserved")),
    ),
    "need": Case(
        plugin=observer("need", "server_ready", "pass", needs=("token_texts",)),
        finding=(
            'observer plugins cannot need "token_texts"; there is: token_ids',
            remove("need"),
        ),
        choose=("--allow", "observer=need"),
        refusal=('observer plugins cannot need "token_texts"', "--allow observer=need"),
    ),
    "abi": Case(
        plugin=kernel("abi", native=LIBRARY + 'abi = "9"\n'),
        complete=no_library,
        finding=("libacme.so of acme-abi 1.0: built for kernel ABI 9, found 1",),
        choose=pin("abi"),
        refusal=("libacme.so of acme-abi 1.0: built for kernel ABI 9, found 1",),
    ),
    "torch": Case(
        plugin=kernel("torch", native=LIBRARY + 'torch = "1.13"\n'),
        complete=no_library,
        finding=("libacme.so of acme-torch 1.0: built for torch 1.13, found 2.",),
        choose=pin("torch"),
        refusal=("libacme.so of acme-torch 1.0: built for torch 1.13, found 2.",),
    ),
}
"""Wrong before a line of their code runs."""

UNLOADABLE: dict[str, Case] = {
    "import": Case(
        plugin=kernel("import", 'raise RuntimeError("the licence file is missing")\n'),
        finding=("cause: RuntimeError: the licence file is missing", remove("import")),
        warning=(
            "kernel import of acme-import 1.0 is left out",
            "RuntimeError: the licence file is missing",
        ),
        choose=pin("import"),
        refusal=(
            'kernel "import" (acme_import:make) of acme-import 1.0 failed to load',
            "cause: RuntimeError: the licence file is missing",
            remove("import"),
        ),
    ),
    "symbol": Case(
        plugin=native("symbol"),
        complete=library("void acme_missing(void); void acme(void) { acme_missing(); }"),
        finding=("libacme.so does not load", "undefined symbol: acme_missing"),
        warning=("kernel symbol of acme-symbol 1.0 is left out", "undefined symbol: acme_missing"),
        choose=pin("symbol"),
        refusal=("acme-symbol 1.0", "undefined symbol: acme_missing", "native library"),
    ),
    "missing-library": Case(
        plugin=native("needy"),
        complete=library("void foo(void); void acme(void) { foo(); }", "void foo(void) {}"),
        finding=("libacme.so does not load", "libfoo.so.9: cannot open shared object file"),
        warning=("kernel needy of acme-needy 1.0 is left out", "libfoo.so.9"),
        choose=pin("needy"),
        refusal=("acme-needy 1.0", "libfoo.so.9: cannot open", "native library"),
    ),
    "half": Case(
        plugin=kernel("half", claims=(f"{OP}:half", "rms_norm@1:half")),
        finding=(
            "offers other kernels than it claims: its manifest claims rms_norm@1:half",
            f"make() returns {OP}:half",
            remove("half"),
        ),
        warning=("kernel half of acme-half 1.0 is left out", "rms_norm@1:half"),
        choose=pin("half"),
        refusal=("acme-half 1.0 offers other kernels than it claims", "rms_norm@1:half"),
    ),
    "entry-class": Case(
        plugin=model("entry-class", "class EntryClass:\n    architectures = ('Other',)\n"),
        finding=(f"claims architecture {ARCHITECTURE}, but no EntryClass of it lists that",),
        refusal=(
            f"acme-entry-class 1.0 claims architecture {ARCHITECTURE}, "
            "but no EntryClass of it lists that",
            "report it to the authors of acme-entry-class",
        ),
    ),
    "hook": Case(
        plugin=observer("hook", "request_finishd", "pass"),
        finding=('a public method "request_finishd", which is no hook', remove("hook")),
        warning=(
            "observer hook of acme-hook 1.0 is left out",
            "request_finishd",
            'did you mean "request_finished"?',
        ),
        choose=("--allow", "observer=hook"),
        refusal=("acme-hook 1.0", "request_finishd"),
    ),
}
"""Sound by what they say of themselves; their code does not keep it."""

SLEEP = "import time\ntime.sleep(60)\n"

UNRUNNABLE: dict[str, Case] = {
    "slow": Case(
        plugin=model("slow", SLEEP, "SlowForCausalLM"),
        finding=('model "slow" of acme-slow 1.0 did not load within 10 s', "--deny model=slow"),
    ),
    "shape": Case(
        plugin=kernel("shape", run="return x[:, :1].clone()"),
        choose=pin("shape"),
        refusal=(
            "acme-shape 1.0 has a kernel that does not keep to its op",
            f"where: kernel shape of acme-shape 1.0 for {OP} at model.layers.0.mlp.act",
            "to do: pin another kernel",
        ),
    ),
    "run": Case(
        plugin=kernel("run", run="raise RuntimeError('the table is not built')"),
        choose=pin("run"),
        refusal=(
            "RuntimeError: the table is not built",
            f"kernel run of acme-run 1.0 for {OP} at model.layers.0.mlp.act",
        ),
    ),
    "crash": Case(
        plugin=kernel("crash", run="ctypes.memset(0, 0, 1)", code="import ctypes\n"),
        choose=pin("crash"),
        refusal=(
            "engine failed: killed by SIGSEGV while it ran "
            f"kernel crash of acme-crash 1.0 for {OP} at model.layers.0.mlp.act",
            f"to do: --pin {OP}=reference",
        ),
    ),
    "raising-observer": Case(
        plugin=observer("raising-observer", "request_finished", "raise RuntimeError('disk full')"),
        warning=(
            "observer raising-observer of acme-raising-observer 1.0 raised in request_finished",
            "RuntimeError: disk full",
        ),
    ),
    "blocking-observer": Case(
        plugin=observer("blocking-observer", "tokens_generated", "time.sleep(10_000)"),
    ),
}
"""Found out only when they are used."""

BLOCKING: dict[str, Case] = {
    "intruder": Case(
        plugin=kernel("intruder", claims=(f"{OP}:cpu",)),
        finding=(f'the kernel claim "{OP}:cpu" is held twice', "acme-intruder 1.0"),
        blocks=(
            f'the kernel claim "{OP}:cpu" is held twice',
            "by acme-intruder 1.0",
            "by tokenspeed-cpu ",
            remove("intruder"),
        ),
        unblock=("--deny", "kernel=acme-intruder"),
    ),
    "platform-raises": Case(
        plugin=platform("acme-raises", "raise RuntimeError('the driver is too old')"),
        finding=("cause: RuntimeError: the driver is too old", remove("raises")),
        choose=("--platform", "acme-raises"),
        refusal=("acme-raises", "cause: RuntimeError: the driver is too old"),
        blocks=("cause: RuntimeError: the driver is too old", "say --platform cpu"),
        unblock=("--platform", "cpu"),
    ),
    "platform-declines": Case(
        plugin=platform("acme-declines", "return Decline('no such device')"),
        choose=("--platform", "acme-declines"),
        refusal=("no usable device: acme-declines", "says: no such device"),
        blocks=("no usable device: acme-declines", "say --platform cpu"),
        unblock=("--platform", "cpu"),
    ),
}
"""Nobody may choose for the operator: any start is refused until the operator has said a word."""

CASES = {**UNREADABLE, **UNLOADABLE, **UNRUNNABLE, **BLOCKING}


def install_all(site: Path) -> Path:
    """Write every broken plugin into one folder of the import path."""
    for case in CASES.values():
        case.install(site)
    return site
