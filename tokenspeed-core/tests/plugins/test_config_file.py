# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Options from a file: flags beat the environment beats the file, and lists to deny add up."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from tokenspeed.cli import environment
from tokenspeed.cli.environment import VARIABLES, check_environment
from tokenspeed.cli.main import main
from tokenspeed.cli.options import engine_config, engine_options

pytestmark = pytest.mark.rule("R10")


@click.command()
@engine_options
@click.option("--api-key", envvar="TOKENSPEED_API_KEY")
def probe(api_key, **values):
    """Says what a command would get."""
    engine = engine_config("model", values)
    click.echo(
        f"seqs={engine.max_num_seqs} graphs={engine.graphs} pins={engine.pins} "
        f"allow={engine.allow} deny={engine.deny} key={api_key}"
    )


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(text of the file, *arguments, VARIABLE=value)"""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def invoke(text, *arguments, **variables):
        file = tmp_path / "ts.toml"
        file.write_text(text)
        words = ["--config", str(file)] if "TOKENSPEED_CONFIG" not in variables else []
        variables = {name: value.format(file=file) for name, value in variables.items()}
        return CliRunner(env=variables).invoke(probe, [*words, *arguments])

    return invoke


FILE = """
max-num-seqs = 8
graphs = false
pin = "rms_norm@1=reference"
allow = ["kernel=file"]
deny = ["model=file"]
api_key = "file"
"""


def test_the_file_is_what_is_left_out_elsewhere(run):
    result = run(FILE)
    assert result.output == (
        "seqs=8 graphs=False pins={'rms_norm@1': 'reference'} "
        "allow=('kernel=file',) deny=('model=file',) key=file\n"
    )
    assert run(FILE, TOKENSPEED_CONFIG="{file}").output == result.output


def test_the_environment_beats_the_file(run):
    output = run(
        FILE,
        TOKENSPEED_API_KEY="env",
        TOKENSPEED_ALLOW="kernel=env;model=env",
        TOKENSPEED_DENY="observer=env",
    ).output
    assert "key=env" in output
    assert "allow=('kernel=env', 'model=env')" in output
    assert "deny=('model=file', 'observer=env')" in output


def test_flags_beat_both_and_denials_add_up(run):
    output = run(
        FILE,
        *("--max-num-seqs", "3", "--graphs", "--allow", "none", "--deny", "kernel=flag"),
        TOKENSPEED_ALLOW="kernel=env",
        TOKENSPEED_DENY="observer=env",
    ).output
    assert "seqs=3 graphs=True" in output
    assert "allow=('none',) deny=('kernel=flag', 'observer=env', 'model=file')" in output


def test_without_any_the_lists_are_open(run):
    assert "allow=None deny=()" in run("").output


def test_an_empty_list_allows_nothing(run):
    assert "allow=('none',) deny=()" in run("allow = []\ndeny = []\n").output
    assert "allow=('kernel=env',)" in run("allow = []", TOKENSPEED_ALLOW="kernel=env").output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-num-seq = 3", 'which is no option here; did you mean "max-num-seqs"?'),
        ("max-num-seqs = {a = 1}", "which is no value of an option"),
        ("max-num-seqs = [1]", "which is no value of an option"),
        ("max-num-seqs = 'many'", "'many' is not a valid integer"),
        ("max-num-seqs = ", "cannot be read"),
        ("threads = true", '"threads" = True, which is no value of an option'),
        ("threads = 1.5", '"threads" = 1.5, which is no value of an option'),
        ("graphs = 1", '"graphs" = 1, which is no value of an option'),
        ("platform = false", '"platform" = False, which is no value of an option'),
        ("allow = [true]", '"allow" = [True], which is no value of an option'),
        ("prefill-share = nan", "which is no value of an option"),
        ("\ufeffthreads = 1", "it begins with a byte order mark"),
        ("config = 'other.toml'", 'has "config", which is no option here'),
    ],
)
def test_a_mistake_names_file_and_key(run, text, message):
    result = run(text)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_removed_variable_says_what_to_use(monkeypatch):
    monkeypatch.setenv("TOKENSPEED_OLD", "1")
    monkeypatch.setattr(environment, "REMOVED", {"TOKENSPEED_OLD": "use --new"})
    with pytest.raises(click.UsageError, match="TOKENSPEED_OLD is no longer read: use --new"):
        check_environment()


def test_no_variable_is_both_read_and_removed():
    assert not set(environment.REMOVED) & set(VARIABLES)


def test_every_command_that_resolves_takes_the_lists():
    for words in (
        ("serve",),
        ("generate",),
        ("kernels", "explain"),
        ("explain", "start"),
        ("plugins", "doctor"),
        ("models", "list"),
        ("bench", "decode"),
        ("bench", "cpu"),
        ("bench", "gateway"),
    ):
        result = CliRunner().invoke(main, [*words, "--help"])
        for option in ("--allow", "--deny", "--config"):
            assert option in result.output, (words, option)
