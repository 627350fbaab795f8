# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What ``ts plugins new`` writes is a whole wheel: built, installed, tested, chosen, and run.

Wheels go into a folder of their own on PYTHONPATH, so that the environment stays as it is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tokenspeed.bench.served import served
from tokenspeed_sdk.templates import KINDS, TemplateError, write

pytestmark = [pytest.mark.rule("R3"), pytest.mark.rule("R19"), pytest.mark.rule("R20")]

NAMES = {"kernel": "acme-norm", "model": "acme-lm", "observer": "acme-log"}
FEWEST_TESTS = {"kernel": 40, "model": 40, "observer": 6}
DOCS = Path(__file__).parents[2] / "docs"
PIN = ("--pin", "rms_norm@1=acme-norm")
TS = "from tokenspeed.cli.main import main; main(prog_name='ts')"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("templates")


@pytest.fixture(scope="module")
def python(place: Path) -> Run:
    """python("-m", "pytest", cwd=project): this interpreter, with the wheels installed."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("TOKENSPEED_")}
    variables |= {"PYTHONPATH": str(place / "site"), "OMP_NUM_THREADS": "1"}

    def run(*arguments: object, cwd: Path = place) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=cwd,
            env=variables,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    return run


@pytest.fixture(scope="module")
def ts(python: Run) -> Run:
    return lambda *arguments, **options: python("-c", TS, *arguments, **options)


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def projects(place: Path, ts: Run) -> dict[str, Path]:
    """Kind -> the project that the command wrote; every file that it names is there."""
    for kind, name in NAMES.items():
        told = succeeded(ts("plugins", "new", kind, name)).splitlines()
        files = {str(p.relative_to(place)) for p in (place / name).rglob("*") if p.is_file()}
        assert set(told[:-1]) == files
        assert told[-1] == f"next: read {name}/README.md"
    return {kind: place / name for kind, name in NAMES.items()}


@pytest.fixture(scope="module")
def installed(place: Path, projects: dict[str, Path], python: Run) -> dict[str, Path]:
    """The same projects, once their wheels are built and installed."""
    options = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    folders = projects.values()
    succeeded(python("-m", "pip", "install", *options, "--target", place / "site", *folders))
    return projects


@pytest.fixture(scope="module")
def tiny(place: Path, installed: dict[str, Path], python: Run) -> Path:
    """The checkpoint that the model's README tells to make."""
    succeeded(python("tests/counterpart.py", place / "tiny", cwd=installed["model"]))
    return place / "tiny"


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_tests_pass(kind: str, installed: dict[str, Path], python: Run) -> None:
    told = succeeded(python("-m", "pytest", "-q", cwd=installed[kind]))
    assert int(re.search(r"(\d+) passed", told)[1]) >= FEWEST_TESTS[kind]
    assert "skipped" not in told


@pytest.mark.parametrize("kind", KINDS)
def test_its_import_contract_holds_and_can_break(
    kind: str, installed: dict[str, Path], python: Run
) -> None:
    lint = ("-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache")
    project = installed[kind]
    succeeded(python(*lint, cwd=project))
    package = next(project.glob("acme_*"))
    intruder = package / "intruder.py"
    intruder.write_text("import tokenspeed.config\n")
    try:
        done = python(*lint, cwd=project)
    finally:
        intruder.unlink()
    assert done.returncode == 1
    assert f"{package.name}.intruder -> tokenspeed" in done.stdout


@pytest.mark.rule("R12")
def test_listed_without_running_its_code(installed: dict[str, Path], ts: Run, python: Run) -> None:
    listed = [line.split() for line in succeeded(ts("plugins", "list")).splitlines()]
    page = (DOCS / "first-kernel.md").read_text().splitlines()
    quoted = [line.split() for line in page if line.endswith(" ok")]
    assert len(quoted) == 4
    assert [line for line in quoted if line not in listed] == []
    assert ["acme-log", "acme-log", "0.1.0", "observer", "acme-log", "ok"] in listed
    assert re.search("AcmeLmForCausalLM .*acme-lm 0.1.0", succeeded(ts("models", "list")))
    discover = (
        "import sys, tokenspeed.cli.new, tokenspeed.plugins.host as host\n"
        "found = {p.id for p in host.discover()}\n"
        "own = {'acme-norm', 'acme-lm', 'acme-log'}; assert own <= found, found\n"
        "loaded = {name.replace('_', '-') for name in sys.modules}\n"
        "heavy = {'torch', *own} & loaded; assert not heavy, heavy\n"
    )
    succeeded(python("-c", discover))


@pytest.mark.rule("R13")
def test_a_kernel_is_chosen_only_when_it_is_pinned(tiny: Path, ts: Run) -> None:
    explain = ("kernels", "explain", tiny, "rms_norm@1")
    plain = succeeded(ts(*explain))
    assert "* cpu (tokenspeed-cpu" in plain
    assert "acme-norm (acme-norm 0.1.0): outranked; score 1" in plain
    pinned = succeeded(ts(*explain, *PIN))
    assert "* acme-norm (acme-norm 0.1.0): pinned" in pinned
    page = (DOCS / "first-kernel.md").read_text()
    quoted = re.findall(r"^ .*\(acme-norm 0\.1\.0\):.*\n", page, re.MULTILINE)
    assert len(quoted) == 2
    assert [line in told for line, told in zip(quoted, (plain, pinned), strict=True)] == [True] * 2


def test_both_serve_a_model(tiny: Path, ts: Run) -> None:
    """The template's model with its kernel and without: the same answer from the same weights."""
    generate = ("generate", tiny, "Hello", "--max-tokens", "8", "--ignore-eos")
    answer = succeeded(ts(*generate))
    assert len(answer) > 1
    assert succeeded(ts(*generate, *PIN)) == answer


def test_an_observer_prints_what_its_readme_says(
    place: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(place / "site"))
    options = ("--threads", "1", "--dtype", "float32", "--kv-pages", "64")
    with served(str(tiny), options) as server:
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
    printed = "".join(server.output)
    line = (
        r"acme-log: length after \d+\.\d\d s, \d+ prompt tokens \(0 from the cache\), 4 generated"
    )
    assert re.search(f"^{line}$", printed, re.MULTILINE), printed
    assert "\nacme-log: requests in all: 1\n" in printed


def test_a_name_that_is_installed_is_refused(installed: dict[str, Path], ts: Run) -> None:
    done = ts("plugins", "new", "kernel", "Acme_Norm", "--out", "again")
    assert done.returncode == 1
    assert "acme-norm 0.1.0 is installed; choose another name, or remove it: pip" in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "'' cannot name a distribution: use letters"),
        ("../acme", "cannot name a distribution"),
        ("2fast", "cannot name a distribution"),
        ("acme-", "cannot name a distribution"),
        ("a b", "cannot name a distribution"),
        ("class", "would make a package named 'class', which is Python's"),
        ("json", "would make a package named 'json', which is Python's"),
        ("tokenspeed-sdk", "tokenspeed-sdk .* is installed"),
        ("tokenspeed", "is installed|can be imported already"),
    ],
)
def test_a_bad_name_is_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=message):
        write("kernel", name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_derived(kind: str, tmp_path: Path) -> None:
    """No name of a template is left, and none of the files needs another one."""
    files = write(kind, "Big.Acme_v2", tmp_path)
    text = "".join((tmp_path / file).read_text() for file in files)
    assert "big_acme_v2/tokenspeed_plugin.toml" in files
    assert 'name = "big-acme-v2"' in text
    assert not re.search(r"\$\w|\$\{|PACKAGE|\.tmpl", text)
    for file in files:
        if file.endswith(".py"):
            compile((tmp_path / file).read_text(), file, "exec")


def test_only_an_empty_folder_is_written_into(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert write("model", "acme-one", tmp_path / "empty")
    (tmp_path / "file").write_text("mine")
    for folder in ("empty", "file"):
        with pytest.raises(TemplateError, match=f"{folder} exists and is not an empty folder"):
            write("model", "acme-one", tmp_path / folder)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_quotes_the_project(kind: str, tmp_path: Path) -> None:
    """Every block of code on docs/first-*.md stands in a file of the project, indented or not."""
    files = write(kind, NAMES[kind], tmp_path)
    text = "".join((tmp_path / file).read_text() for file in files)
    page = (DOCS / f"first-{kind}.md").read_text()
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        forms = [textwrap.indent(block, " " * depth) for depth in (0, 4, 8)]
        assert any(form in text for form in forms), f"no file of the project says\n{block}"
    for file in files:
        assert f"{NAMES[kind]}/{file}\n" in page
    assert f"next: read {NAMES[kind]}/README.md\n" in page
