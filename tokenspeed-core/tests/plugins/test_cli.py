# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The command line with sound, broken and missing plugins."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner
from tokenspeed.cli.environment import VARIABLES
from tokenspeed.cli.main import COMMANDS, main


@pytest.fixture
def run(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def invoke(*arguments):
        return CliRunner().invoke(main, list(arguments), prog_name="ts")

    return invoke


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def broken(site):
    """Every kind of plugin that there should not be."""
    boom = "raise SystemExit('imported')"
    site.provide("newer", "kernel", "k", number="9.0", code=boom, claims=("rms_norm@1:k",))
    site.provide("one", "model", "a", claims=("LlamaForCausalLM",), code=boom)
    site.provide("two", "model", "b", claims=("LlamaForCausalLM",), code=boom)
    site.add("lost", None, {"tokenspeed.plugins": {"lost": "lost:tokenspeed_plugin.toml"}})
    site.add("bad", "id = ", {"tokenspeed.plugins": {"bad": "bad:tokenspeed_plugin.toml"}}, boom)
    return site


@pytest.mark.rule("R11")
def test_plugins_list_shows_the_broken_with_the_reason(run, broken):
    result = run("plugins", "list")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert "kernel k" in lines["newer"]
    assert "refused: newer 1.0 provides kernel" in lines["newer"]
    assert "contract number 9.0; this engine serves 1.0" in lines["newer"]
    assert "refused: no file tokenspeed_plugin.toml in" in lines["lost"]
    assert "refused: the plugin manifest of bad is not valid" in lines["bad"]
    held = 'refused: the model claim "LlamaForCausalLM" is held twice: by one 1.0 and by two 1.0'
    assert held in lines["one"]
    assert held in lines["two"]


@pytest.mark.rule("R11")
def test_plugins_list_as_data(run, broken):
    result = run("plugins", "list", "--json")
    assert result.exit_code == 0
    plugins = {plugin["id"]: plugin for plugin in json.loads(result.output)}
    assert plugins["newer"]["problem"]["kind"] == "ContractError"
    assert plugins["newer"]["problem"]["fix"] == "pip install --upgrade tokenspeed-core"
    assert plugins["one"]["provides"][0]["claims"] == ["LlamaForCausalLM"]
    assert plugins["one"]["problem"]["kind"] == "DuplicateClaimError"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("newer", "contract number 9.0"),
        ("lost", "no file"),
        ("bad", "Invalid value"),
        ("one", "is held twice"),
    ],
)
def test_plugins_show_says_what_is_wrong(run, broken, name, message):
    result = run("plugins", "show", name)
    assert result.exit_code == 0
    assert message in result.output


def test_plugins_show_of_an_unknown_name_suggests(run, broken):
    result = run("plugins", "show", "newwer")
    assert result.exit_code == 1
    assert 'did you mean "newer"?' in result.output


def test_plugins_show_finds_what_a_plugin_provides(run, site):
    site.provide("family", "model", "llama", claims=("LlamaForCausalLM",))
    shown = run("plugins", "show", "llama")
    assert shown.exit_code == 0
    assert "plugin        family" in shown.output


def test_generate_says_what_is_missing(run, model):
    """Standard input is empty here."""
    result = run("generate", str(model))
    assert result.exit_code == 2
    assert "give PROMPT, or pipe one in" in result.output


def test_chat_names_the_address_that_it_takes(run):
    assert "127.0.0.1:8000" in run("chat", "--help").output


def test_kernels_explain_knows_the_dtypes(run, model):
    result = run("kernels", "explain", str(model), "--dtype", "int3")
    assert result.exit_code == 2
    assert "'auto', 'float32', 'bfloat16', 'float16'" in result.output


def test_plugins_show_tells_all(run, site):
    more = 'needs = ["token_ids"]\n[[native]]\nfile = "libacme.so"\nabi = "1"\n'
    site.provide("acme", "observer", "watch", devices=("cuda",), more=more)
    library = site.folder / "acme" / "libacme.so"
    library.touch()
    lines = run("plugins", "show", "acme").output.splitlines()
    assert "  devices     cuda" in lines
    assert "  needs       token_ids" in lines
    assert f"native        {library}" in lines
    assert lines[-1] == "state         ok"
    (data,) = json.loads(run("plugins", "show", "acme", "--json").output)
    assert data["native"][0]["abi"] == "1"


def test_explain_start_prints_the_reason_why_not(run, site, model):
    site.platform("acme-gpu", "acme", verdict="Decline('no device on the bus')")
    result = run("explain", "start", str(model))
    assert result.exit_code == 1
    assert "no device on the bus" in result.output


def test_models_list_leaves_out_what_is_broken_or_denied(run, site):
    site.provide("family", "model", "llama", claims=("LlamaForCausalLM",))
    site.provide("other", "model", "qwen", claims=("QwenForCausalLM",))
    site.provide("newer", "model", "new", number="9.9", claims=("NewForCausalLM",))
    result = run("models", "list", "--deny", "model=qwen")
    assert result.exit_code == 0
    assert "LlamaForCausalLM" in result.output
    assert "QwenForCausalLM" not in result.output
    assert "contract number 9.9" in result.stderr
    assert "the lists leave no model" in run("models", "list", "--allow", "model=none").output
    misspelt = run("models", "list", "--deny", "model=qwem")
    assert misspelt.exit_code == 1
    assert 'did you mean "qwen"?' in misspelt.output


def test_models_list(run, site):
    site.provide("family", "model", "llama", claims=("LlamaForCausalLM", "MistralForCausalLM"))
    lines = run("models", "list").output.splitlines()
    assert lines[1].split() == ["LlamaForCausalLM", "llama", "family", "1.0"]
    assert lines[2].split()[0] == "MistralForCausalLM"


def test_nothing_installed_says_what_to_install(run, site, model):
    assert "pip install tokenspeed-cpu" in run("plugins", "list").output
    assert "pip install tokenspeed-models" in run("models", "list").output
    result = run("serve", str(model))
    assert result.exit_code == 1
    assert "pip install tokenspeed-cpu" in result.output


def test_serve_without_a_model_family_names_the_wheel(run, site, model):
    site.platform("acme-gpu", "acme")
    result = run("serve", str(model))
    assert result.exit_code == 1
    assert "LlamaForCausalLM" in result.output
    assert "pip install tokenspeed-models" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name one model folder"),
        (("/no/such/folder",), "/no/such/folder does not exist; give the folder"),
        (("{tmp}",), "has no config.json; give the folder"),
        (("{model}", "--model", "{model}"), "name one model folder"),
        (("{model}", "--max-num-seqs", "0"), "--max-num-seqs"),
        (("{model}", "--prefill-share", "1.5"), "--prefill-share"),
        (("{model}", "--prefill-share", "nan"), "--prefill-share nan is not allowed"),
        (("{model}", "--request-timeout", "nan"), "--request-timeout nan is not allowed"),
        (("{model}", "--page-size", "9999"), "--page-size 9999 is not allowed"),
        (("{model}", "--max-step-tokens", "8"), "--max-num-seqs 64 is more than --max-step-tokens"),
        (("{model}", "--dtype", "int3"), "--dtype"),
        (("{model}", "--max-model-len", "long"), "'long' is not a valid integer."),
        (("{model}", "--pin", "rms_norm@1"), "is not OP=KERNEL"),
        (("{model}", "--pin", "a@1=x", "--pin", "a@1=y"), "two kernels for a@1: x and y"),
        (("{model}", "--tool-call-parser", "qwem"), "did you mean"),
        (("{model}", "--chat-template", "/no/template"), "--chat-template"),
        (("{model}", "--host", "203.0.113.1"), "cannot listen on 203.0.113.1"),
    ],
)
def test_bad_values_are_usage_errors(run, site, model, arguments, message):
    filled = [word.format(tmp=model.parent, model=model) for word in arguments]
    result = run("serve", *filled)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_an_asked_for_port_that_is_taken_is_an_error(run, site, model):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = run("serve", str(model), "--port", str(port))
    assert result.exit_code == 2
    assert f"port {port} of 127.0.0.1 is in use" in result.output


def test_an_admin_port_that_is_taken_or_given_twice_is_an_error(run, site, model):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        result = run("serve", str(model), "--admin-port", port)
    assert result.exit_code == 2
    text = " ".join(result.output.split())
    assert f"port {port} of 127.0.0.1 is in use" in text
    assert "leave --admin-port out" in text
    both = run("serve", str(model), "--port", port, "--admin-port", port)
    assert both.exit_code == 2
    assert f"--port and --admin-port are both {port}" in both.output


@pytest.mark.parametrize("text", ["{", "[]", '{"architectures": "Llama"}'])
def test_a_config_that_is_not_one_names_the_file(run, site, model, text):
    site.platform("acme-gpu", "acme")
    (model / "config.json").write_text(text)
    result = run("serve", str(model))
    assert result.exit_code == 1
    assert str(model / "config.json") in result.output


def test_serve_needs_the_tokenizer(run, site, model):
    site.platform("acme-gpu", "acme")
    site.provide("family", "model", "llama", claims=("LlamaForCausalLM",))
    (model / "tokenizer.json").unlink()
    result = run("serve", str(model))
    assert result.exit_code == 1
    assert f"{model / 'tokenizer.json'} is missing" in result.output


def test_a_length_beyond_the_models_names_both(run, site, model):
    site.platform("acme-gpu", "acme")
    site.provide("family", "model", "llama", claims=("LlamaForCausalLM",))
    (model / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 2048}'
    )
    result = run("serve", str(model), "--max-model-len", "9000")
    assert result.exit_code == 2
    text = " ".join(result.output.split())
    assert "--max-model-len 9000 is more than the model can: 2048" in text


def test_a_folder_for_temporary_files_that_is_too_deep(run, site, model, monkeypatch, tmp_path):
    site.platform("acme-gpu", "acme")
    site.provide("family", "model", "llama", claims=("LlamaForCausalLM",))
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    result = run("serve", str(model))
    assert result.exit_code == 1
    assert "set TMPDIR to a shorter folder" in result.output


def test_chat_with_a_key_that_is_none(run):
    result = run("chat", "127.0.0.1:1", "--api-key", "a\nb")
    assert result.exit_code == 1
    assert "API key must be printable ASCII" in result.output


@pytest.mark.rule("R10")
def test_an_unknown_variable_with_our_prefix_is_an_error(run, site, model, monkeypatch):
    monkeypatch.setenv("TOKENSPEED_API_KEYS", "x")
    result = run("serve", str(model))
    assert result.exit_code == 2
    assert 'TOKENSPEED_API_KEYS: did you mean "TOKENSPEED_API_KEY"?' in result.output


def test_an_unknown_command_gets_a_suggestion(run):
    result = run("plugin")
    assert result.exit_code == 2
    assert 'did you mean "plugins"?' in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_under_its_name(name):
    assert main.get_command(None, name).name == name


@pytest.mark.rule("R11")
@pytest.mark.rule("R12")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["plugins", "--help"],
        ["plugins", "list"],
        ["plugins", "list", "--json"],
        ["plugins", "show", "bad"],
        ["plugins", "doctor", "--allow", "none"],
        ["models", "list", "--deny", "model=one"],
    ],
)
def test_light_commands_import_neither_torch_nor_any_plugin(broken, arguments):
    """On the real import path with broken plugins added, in a process of its own."""
    program = """
import sys
from tokenspeed.cli.main import main
try:
    main(sys.argv[1:], prog_name="ts")
except SystemExit:
    pass
from tokenspeed.plugins.discover.discovery import discover
found = {p.distribution.replace("-", "_") for p in discover()}
assert {"newer", "one", "two", "lost", "bad"} <= found, found
loaded = (found | {"half", "torch", "numpy", "zmq", "aiohttp", "grpc", "smg"}) & set(sys.modules)
assert not loaded, loaded
"""
    path = os.pathsep.join([str(broken.folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
