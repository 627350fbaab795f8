# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""docs/security.md against the sources: nothing runs what it reads, and the limits are as named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributions import DISTRIBUTIONS, ROOT, source_files
from tokenspeed.config import FrontConfig
from tokenspeed.front import biases, caller, compiler, constraint, grammars, request, service
from tokenspeed.grammar import worker
from tokenspeed.messages import MAX_TOP_LOGPROBS
from tokenspeed.process import gateway
from tokenspeed_sdk import json_schema, model_files

PAGE = (ROOT / "docs" / "security.md").read_text()

FORBIDDEN_MODULES = {
    *(
        "pickle",
        "_pickle",
        "cPickle",
        "dill",
        "cloudpickle",
        "marshal",
        "shelve",
        "joblib",
        "jsonpickle",
    ),
    *("multiprocessing", "xmlrpc", "yaml"),
}
"""What reads them, or what they send, may be code."""
WATCHES = "sdk/tokenspeed_sdk/testing/observer/suite.py"
"""Asks that module which processes an observer has left behind, and starts none."""
FORBIDDEN_CALLS = re.compile(
    r"^(builtins\.)?(eval|exec)$|\.(send_pyobj|recv_pyobj)$|^tempfile\.mktemp$"
    r"|^(torch|torch\.serialization|numpy|np)\.(load|save)$"
    r"|^os\.(system|popen)$|^torch\.hub\."
)
FORBIDDEN_WORDS = ("trust_remote_code", "allow_pickle", "auto_map", "weights_only", "shell")

LIMITS = {
    "bytes of an HTTP request": gateway.MAX_BODY_BYTES,
    "bytes of a gRPC request": service.MAX_MESSAGE_BYTES,
    "answers to one prompt (`n`)": request.MAX_N,
    "stop strings": request.MAX_STOP_STRINGS,
    "characters of one": request.MAX_STOP_STRING_LENGTH,
    "stop token ids": request.MAX_STOP_TOKEN_IDS,
    "entries of `logit_bias`": biases.MAX_LOGIT_BIASES,
    "`top_logprobs`": MAX_TOP_LOGPROBS,
    "characters of a salt": caller.MAX_SALT_LENGTH,
    "characters of a grammar or schema": constraint.MAX_LENGTH,
    "nesting of a schema or structural tag": json_schema.MAX_DEPTH,
    "seconds to compile one": compiler.COMPILE_S,
    "bytes of memory to compile one": worker.MEMORY,
    "bytes of one compiled": grammars.MAX_COMPILED,
    "constraints that wait for the compiler": grammars.MAX_WAITING,
    "bytes of config.json and its like": model_files.MAX_CONFIG_BYTES,
    "bytes of the index of weights": model_files.MAX_INDEX_BYTES,
    "bytes of tokenizer.json": model_files.MAX_TOKENIZER_BYTES,
    "bytes of chat_template.jinja": model_files.MAX_TEMPLATE_BYTES,
    "requests that wait": FrontConfig(model="", served_model_name="").max_queue,
    "seconds of a request": FrontConfig(model="", served_model_name="").request_timeout,
}
BY_OPTION = {"tokens of prompt and answer"}


def sources() -> list[Path]:
    """All that is installed and is Python, the test kit too."""
    packages = [ours.path / ours.package for ours in DISTRIBUTIONS if ours.package]
    return [file for package in packages for file in source_files(package) if file.suffix == ".py"]


def dotted(node: ast.expr) -> str:
    """A name as it is written, such as "torch.load"; of anything else its last part."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            if FORBIDDEN_CALLS.search(dotted(node.func)):
                yield node.lineno, dotted(node.func)
            for word in (k for k in node.keywords if k.arg in FORBIDDEN_WORDS):
                yield node.lineno, str(word.arg)
            names = []
        else:
            names = []
        yield from ((node.lineno, n) for n in names if n.partition(".")[0] in FORBIDDEN_MODULES)


def test_no_source_reads_or_sends_what_can_be_code() -> None:
    files = sources()
    assert len(files) > 200
    found = [
        f"{file.relative_to(ROOT)}:{line}: {what}"
        for file in files
        for line, what in faults(ast.parse(file.read_text("utf-8")))
        if (file.relative_to(ROOT).as_posix(), what.partition(".")[0])
        != (WATCHES, "multiprocessing")
    ]
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import multiprocessing.pool",
        "from cloudpickle import loads",
        "torch.load(path)",
        "np.load(path)",
        "socket.recv_pyobj()",
        "builtins.eval(text)",
        "exec(text)",
        "os.system(text)",
        "subprocess.run(text, shell=True)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
    ],
)
def test_the_search_finds_what_it_is_for(line: str) -> None:
    assert [*faults(ast.parse(line))]


def test_no_source_knows_the_fields_by_which_folders_name_code() -> None:
    for file in sources():
        text = file.read_text("utf-8")
        assert not {word for word in FORBIDDEN_WORDS[:3] if word in text}, file


BARS = "tokenspeed-core/tokenspeed/cli/bench_engine.py"
"""Reads a file of the operator's own."""


def test_files_of_models_are_read_through_their_limits() -> None:
    unbounded = re.compile(r"json\.loads?\([^\n]*\.read_(text|bytes)\(|json\.load\(\w*path")
    found = [
        name
        for file in sources()
        if unbounded.search(file.read_text("utf-8"))
        and (name := file.relative_to(ROOT).as_posix()) != BARS
    ]
    assert not found, "model_files.read_object reads no more than it may"


def test_the_page_has_every_limit_as_it_is() -> None:
    table = PAGE.partition("\n## Limits\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.M)[1:])
    assert set(rows) - BY_OPTION == set(LIMITS)
    for what, limit in LIMITS.items():
        shown = re.search(r"\b\d+\b", rows[what])
        assert shown, what
        assert float(shown[0]) == limit, what


def test_the_tests_that_the_page_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert named
    assert all((ROOT / name).is_file() for name in named)
