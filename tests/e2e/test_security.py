# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""docs/security.md with a real server: started inside of a folder full of traps, with keys, for
tenants, with a drafter, and with every unpickling of its processes written down."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tokenspeed.bench import served as module
from tokenspeed.bench.served import served

TS = str(Path(sys.executable).parent / "ts")
MODEL = "trapped"
KEY, OPERATOR_KEY = "the-clients-key-83a1", "the-operators-key-17c9"
LAW = (Path(__file__).resolve().parent.parent / "data" / "constitution.txt").read_text()
TRAP = "open({!r}, 'a').write(__name__ + '\\n')\n"
TRAPPED = ("modeling_llama", "configuration_llama", "tokenization", "json", "torch", "msgspec")
"""Files of the folder: what auto_map names, and what shadows modules that are imported."""
AUDIT = """
import os, sys
log = os.open({!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(log, b"started\\n")
def hook(event, args):
    if event == "pickle.find_class":
        os.write(log, (" ".join(map(str, args)) + "\\n").encode())
sys.addaudithook(hook)
"""


def trapped_folder(demo_folder: Path, parent: Path, mark: Path) -> Path:
    """The demo model, with code beside it."""
    folder = parent / MODEL
    folder.mkdir()
    for file in demo_folder.iterdir():
        if file.suffix == ".safetensors":
            (folder / file.name).symlink_to(file)
        else:
            shutil.copy(file, folder)
    config = json.loads((folder / "config.json").read_text())
    named = {"AutoConfig": "configuration_llama.C", "AutoModelForCausalLM": "modeling_llama.M"}
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": named}))
    for name in TRAPPED:
        (folder / f"{name}.py").write_text(TRAP.format(str(mark)))
    return folder


@dataclass
class Secured:
    """A server, and what its processes leave behind."""

    server: Any
    folder: Path
    mark: Path
    unpickled: Path

    @property
    def processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self.server.process.process.pid)
        return [parent, *parent.children(recursive=True)]

    def post(self, path: str, key: str | None = KEY, **options: Any) -> httpx.Response:
        headers = options.pop("headers", {})
        if key is not None:
            headers |= {"Authorization": f"Bearer {key}"}
        return httpx.post(f"{self.server.url}{path}", headers=headers, timeout=60, **options)

    def complete(self, salt: str, prompt: str, **fields: Any) -> Any:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0} | fields
        answer = self.post("/v1/completions", json=body, headers={"x-request-id": f"s={salt},1"})
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def secured(
    demo_folder: Path, server_type: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    parent = tmp_path_factory.mktemp("secured")
    mark, unpickled, watch = parent / "mark", parent / "unpickled", parent / "watch"
    folder = trapped_folder(demo_folder, parent, mark)
    watch.mkdir()
    (watch / "sitecustomize.py").write_text(AUDIT.format(str(unpickled)))
    arguments = ["--isolate-tenants", "--drafter", "suffix", "--threads", "2"]
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setattr(module, "TS", (TS,))
        patch.setenv("PYTHONPATH", str(watch))
        patch.setenv("TOKENSPEED_API_KEY", KEY)
        patch.setenv("TOKENSPEED_OPERATOR_KEY", OPERATOR_KEY)
        with served(".", [*arguments, "--log-level", "debug"]) as process:
            yield Secured(server_type(process), folder, mark, unpickled)


def test_no_code_of_the_folder_runs_and_nothing_is_unpickled(secured: Secured) -> None:
    secured.complete("acme", "Hello")
    message = {"role": "user", "content": "Hello"}
    body = {"model": MODEL, "messages": [message], "max_tokens": 8}
    body |= {"response_format": {"type": "json_object"}}  # starts the compiler, too
    answer = secured.post("/v1/chat/completions", json=body, headers={"x-request-id": "s=a,1"})
    assert answer.status_code == 200, answer.text
    assert len(secured.processes) == 5  # supervisor, engine, front, gateway, compiler
    lines = secured.unpickled.read_text().splitlines()
    assert len(lines) >= 5
    assert set(lines) == {"started"}
    assert not secured.mark.exists()


def test_the_traps_work(secured: Secured, tmp_path: Path) -> None:
    """Where something does import them, or unpickles."""
    folder = trapped_folder(secured.folder, tmp_path, tmp_path / "mark")
    subprocess.run([sys.executable, "-c", "import json"], cwd=folder, check=True)
    assert (tmp_path / "mark").read_text() == "json\n"
    (tmp_path / "sitecustomize.py").write_text(AUDIT.format(str(tmp_path / "log")))
    line = "import pickle, fractions; pickle.loads(pickle.dumps(fractions.Fraction(1)))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-P", "-c", line], env=environment, check=True)
    assert (tmp_path / "log").read_text() == "started\nfractions Fraction\n"


def test_every_port_is_of_this_machine_and_every_socket_of_this_user(secured: Secured) -> None:
    listening = [
        connection
        for process in secured.processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) == 4  # HTTP, gRPC, admin, the gateway's metrics
    addresses = {connection.laddr.ip.removeprefix("::ffff:") for connection in listening}
    assert addresses == {"127.0.0.1"}
    paths = {
        Path(connection.laddr)
        for process in secured.processes
        for connection in process.net_connections("unix")
        if isinstance(connection.laddr, str) and connection.laddr.startswith("/")
    }
    assert len(paths) == 1
    [path] = paths
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.parent.stat().st_uid == os.getuid()


def test_keys_show_nowhere(secured: Secured) -> None:
    secured.complete("acme", "Hello")
    secured.post("/v1/completions", key="wrong", json={})
    shown = ["".join(secured.server.process.output)]
    shown += [" ".join([process.name(), *process.cmdline()]) for process in secured.processes]
    assert "debug" in shown[1], "the command line is there"
    assert not [text for text in shown if KEY in text or OPERATOR_KEY in text]


@pytest.mark.parametrize("key", [None, "wrong", KEY[:-1]])
def test_without_the_key_nothing_is_answered(secured: Secured, key: str | None) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/generate", "/v1/messages"):
        assert secured.post(path, key, json={"model": MODEL, "prompt": "a"}).status_code == 401


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize(
    "path", ["/workers", "/flush_cache", "/v1/tokenizers", "/wasm", "/start_profile"]
)
def test_clients_cannot_change_the_server(secured: Secured, path: str, key: str | None) -> None:
    body = {"url": "grpc://127.0.0.1:9", "name": "x", "source": "/etc"}
    assert secured.post(path, key, json=body).status_code == 401


def test_the_operator_can_but_is_no_client(secured: Secured) -> None:
    assert secured.post("/flush_cache", OPERATOR_KEY).status_code == 200
    body = {"model": MODEL, "prompt": "a"}
    assert secured.post("/v1/completions", OPERATOR_KEY, json=body).status_code == 401


def test_a_wrong_key_ends_a_batch_and_blames_no_line(secured: Secured, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    line = {"custom_id": "1", "url": "/v1/completions", "body": {"prompt": "a"}}
    source.write_text(json.dumps(line))
    command = [TS, "batch", str(source), str(output), "--url", secured.server.url]
    command += ["--api-key", "wrong"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "the server does not accept the key: HTTP 401" in run.stderr
    assert "the same command goes on from there" in run.stderr
    assert output.read_text() == ""
    assert not output.with_suffix(".errors.jsonl").exists()


def test_a_body_beyond_the_limit_is_refused_and_the_next_is_answered(secured: Secured) -> None:
    body = b'{"prompt": "' + b"a" * (64 << 20) + b'"}'
    headers = {"Content-Type": "application/json"}
    assert secured.post("/v1/completions", content=body, headers=headers).status_code == 413
    secured.complete("acme", "Hello")


def cached(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_tenants_prefix_is_nobody_elses(secured: Secured) -> None:
    prompt = f"Of tenants. {LAW[:800]}"
    assert cached(secured.complete("one", prompt)) == 0
    assert cached(secured.complete("one", prompt)) > 128
    for stranger in ("two", "on", "One"):
        assert cached(secured.complete(stranger, prompt)) == 0
    assert cached(secured.complete("one", prompt)) > 128


def test_a_tenants_answers_are_guessed_from_for_nobody_else(secured: Secured) -> None:
    """Right guesses of an answer that somebody else had are those of one that nobody had."""

    def accepted(salt: str) -> float:
        before = secured.server.metric("accepted_tokens_total")
        secured.complete(salt, "Once upon a time there was", max_tokens=24, ignore_eos=True)
        return float(secured.server.metric("accepted_tokens_total") - before)

    alone = accepted("first")
    assert accepted("first") > alone, "the drafter knows it now"
    assert accepted("second") == alone
    assert accepted("third") == alone
    assert accepted("second") > alone


def test_no_conversation_is_kept_for_whoever_knows_its_id(secured: Secured) -> None:
    body = {"model": MODEL, "input": "Hello", "max_output_tokens": 4, "store": True}
    answer = secured.post("/v1/responses", json=body, headers={"x-request-id": "s=acme,1"})
    assert answer.status_code == 200, answer.text
    named = answer.json()["id"]
    headers = {"Authorization": f"Bearer {KEY}"}
    kept = httpx.get(f"{secured.server.url}/v1/responses/{named}", headers=headers)
    assert kept.status_code >= 400
    body |= {"previous_response_id": named}
    again = secured.post("/v1/responses", json=body, headers={"x-request-id": "s=other,1"})
    assert again.status_code >= 400


def refused(folder: Path) -> str:
    """What a start says that ends."""
    run = subprocess.run(
        [TS, "serve", str(folder)], capture_output=True, text=True, timeout=180, check=False
    )
    assert run.returncode == 1
    assert "Traceback" not in run.stdout + run.stderr
    return run.stderr


@pytest.mark.parametrize("name", ["chat_template.jinja", "generation_config.json"])
def test_a_link_out_of_the_folder_is_refused(demo_folder: Path, tmp_path: Path, name: str) -> None:
    folder = trapped_folder(demo_folder, tmp_path, tmp_path / "mark")
    secret = tmp_path / "id_rsa"
    secret.write_text("a secret")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    said = refused(folder)
    assert f"{name} is a link to {secret}, outside of its folder; put a copy there" in said
    assert "a secret" not in said
