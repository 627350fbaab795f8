# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which tests prove which plugin rule: those marked ``@pytest.mark.rule("R6")``. Runs none.

python tools/rule_tests.py          # the rules, each with its tests
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

Proofs = dict[str, dict[str, list[str]]]
"""Rule -> file relative to the repository's root -> names of the marked tests, in order."""


@cache
def proofs() -> Proofs:
    """Every rule that a test of the repository names."""
    found: Proofs = {}
    for path in test_files():
        for rule, test in marked(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            tests = found.setdefault(rule, {}).setdefault(path, [])
            if test not in tests:
                tests.append(test)
    return {rule: found[rule] for rule in sorted(found, key=lambda rule: int(rule[1:]))}


def test_files() -> list[str]:
    """Test modules that are, or would be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*test_*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted({name for name in listed.stdout.splitlines() if (ROOT / name).is_file()})


def marked(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Rule and test. A mark on a class or on ``pytestmark`` counts for every test below it."""
    yield from _below(module, [r for node in module.body for r in _assigned(node)])


def _below(scope: ast.Module | ast.ClassDef, inherited: list[str]) -> Iterator[tuple[str, str]]:
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            own = [rule for mark in node.decorator_list for rule in _rules(mark)]
            own += [rule for inner in node.body for rule in _assigned(inner)]
            yield from _below(node, inherited + own)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:4] == "test":
            own = [rule for mark in node.decorator_list for rule in _rules(mark)]
            yield from ((rule, node.name) for rule in inherited + own)


def _assigned(node: ast.stmt) -> list[str]:
    """Rules of a ``pytestmark = ...``."""
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
        return _rules(node.value)
    return []


def _rules(expression: ast.expr) -> list[str]:
    """Arguments of every ``pytest.mark.rule(...)`` in it, those of single parameters too."""
    return [
        argument.value
        for call in ast.walk(expression)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.rule"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    ]


def main() -> None:
    """Print them."""
    for rule, files in proofs().items():
        for path, tests in files.items():
            print(f"{rule:4} {path}: {', '.join(tests)}")


if __name__ == "__main__":
    main()
