# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A platform that does not answer in time does not hold up the others."""

from __future__ import annotations

import ctypes
import os
import time

import pytest
from tokenspeed.cli.without_weights import ask_everything
from tokenspeed.config import EngineConfig
from tokenspeed.plugins.choose.lists import gather
from tokenspeed.plugins.errors import BrokenPromiseError, LoadError
from tokenspeed.plugins.host import load_platform, resolve_installed
from tokenspeed.plugins.load import probe
from tokenspeed.plugins.load.stdout import stdout_to_stderr

pytestmark = [pytest.mark.rule("R5"), pytest.mark.rule("R6")]

SLEEP = "import time\ntime.sleep(20)\n"


@pytest.fixture(autouse=True)
def _budget(monkeypatch):
    assert probe.BUDGET == 5.0
    monkeypatch.setattr(probe, "BUDGET", 0.3)


@pytest.mark.parametrize("where", ["import", "probe"])
def test_a_slow_platform_beside_another_is_a_warning(site, where):
    site.platform("acme-gpu", "acme")
    if where == "import":
        site.platform("slow-gpu", "slow", prefix=SLEEP)
    else:
        site.platform("slow-gpu", "slow", verdict="__import__('time').sleep(20)")
    started = time.monotonic()
    resolution = resolve_installed()
    assert time.monotonic() - started < 5
    assert resolution.plan.platform == "acme"
    (warning,) = resolution.warnings
    assert 'platform "slow" (slow_gpu:make) of slow-gpu 1.0 did not answer within 0.3 s' in warning
    assert "deny it: --deny platform=slow" in warning


def test_a_slow_platform_that_may_be_the_only_one_is_fatal(site):
    site.platform("small", "cpu", embedded=True)
    site.platform("slow-gpu", "slow", prefix=SLEEP)
    with pytest.raises(LoadError, match="did not answer") as caught:
        resolve_installed()
    assert "--platform cpu" in caught.value.fix
    lists = gather(deny=["platform=slow"])
    assert resolve_installed(lists=lists).plan.platform == "cpu"


@pytest.mark.rule("R11")
@pytest.mark.parametrize(
    ("verdict", "how"),
    [
        ("__import__('os')._exit(0)", "ended its process with status 0"),
        ("__import__('os').kill(__import__('os').getpid(), 11)", "was killed by SIGSEGV"),
        ("exec('raise KeyboardInterrupt(1)')", "cause: KeyboardInterrupt: 1"),
        ("exec('raise SystemExit(3)')", "cause: SystemExit: 3"),
    ],
)
def test_a_platform_that_ends_its_process_ends_no_launch(site, verdict, how):
    site.platform("acme-gpu", "acme")
    site.platform("rude-gpu", "rude", verdict=verdict)
    resolution = resolve_installed()
    assert resolution.plan.platform == "acme"
    (warning,) = resolution.warnings
    assert 'platform "rude" (rude_gpu:make) of rude-gpu 1.0' in warning
    assert how in warning
    with pytest.raises(LoadError, match=how):
        resolve_installed("rude")


@pytest.mark.parametrize(
    ("verdict", "what"),
    [
        ("None", "its probe answers None"),
        ("Accept(float('nan'), 'x')", "answers score nan"),
        ("Accept(True, 'x')", "answers score True"),
        ("Accept('9', 'x')", "answers score '9'"),
        ("Accept(9, None)", "says why with None"),
        ("Decline(7)", "says why with 7"),
        ("setattr(type(self), 'prepare', None) or Accept(9, 'x')", "it has no method prepare"),
        ("setattr(type(self), 'open', 3) or Accept(9, 'x')", "it has no method open"),
    ],
)
def test_what_is_no_platform_is_refused_with_its_owner(site, verdict, what):
    site.platform("acme-gpu", "acme", verdict=verdict)
    with pytest.raises(LoadError, match=what) as caught:
        resolve_installed("acme")
    assert "of acme-gpu 1.0" in caught.value.what


def test_a_score_has_no_largest(site):
    site.platform("acme-gpu", "acme", verdict="Accept(10**30, 'x')")
    site.platform("other-gpu", "other", verdict="Accept(10**30 + 1, 'x')")
    assert resolve_installed().plan.platform == "other"


@pytest.mark.rule("R19")
def test_what_a_platform_prints_is_not_the_command_s_output(site, capfd):
    site.platform("acme-gpu", "acme", prefix="import os\nos.write(1, b'loud')\nprint('LOUD')\n")
    assert resolve_installed().plan.platform == "acme"
    out, err = capfd.readouterr()
    assert out == ""
    assert "loud" in err
    assert "LOUD" in err


@pytest.mark.rule("R11")
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise RuntimeError('no driver')", "failed to open its device\n  cause: RuntimeError: no"),
        ("raise SystemExit(4)", "failed to open its device\n  cause: SystemExit: 4"),
        ("return None", "opens None, which is no device"),
    ],
)
def test_what_goes_wrong_at_opening_names_the_owner(site, body, said):
    site.platform("acme-gpu", "acme")
    init = site.folder / "acme_gpu" / "__init__.py"
    init.write_text(init.read_text().replace("raise RuntimeError('no device to open')", body))
    platform = load_platform(resolve_installed().plan)
    platform.prepare(None)
    with pytest.raises((LoadError, BrokenPromiseError)) as caught:
        platform.open()
    assert "acme-gpu 1.0" in caught.value.what
    assert said in caught.value.what
    assert "acme-gpu" in caught.value.fix


def test_what_goes_wrong_at_preparing_names_the_owner(site):
    site.platform("acme-gpu", "acme")
    init = site.folder / "acme_gpu" / "__init__.py"
    init.write_text(init.read_text().replace("        pass", "        raise OSError('no')"))
    platform = load_platform(resolve_installed().plan)
    with pytest.raises(LoadError, match=r"of acme-gpu 1\.0 failed to prepare this process"):
        platform.prepare(None)


@pytest.mark.rule("R19")
def test_what_is_printed_while_plugins_run_goes_to_standard_error(capfd):
    with stdout_to_stderr():
        print("python")
        os.write(1, b"descriptor\n")
        ctypes.CDLL(None).puts(b"library")
    print("result")
    out, err = capfd.readouterr()
    assert out == "result\n"
    assert {"python", "descriptor", "library"} <= set(err.split())


@pytest.mark.rule("R19")
def test_the_commands_that_run_plugins_keep_their_output_clean(site, tmp_path, capfd):
    site.platform("acme-gpu", "acme")
    site.provide("family", "model", "llama", claims=("LlamaForCausalLM",))
    init = site.folder / "acme_gpu" / "__init__.py"
    loud = "        print('loud')\n        raise OSError('no')"
    init.write_text(init.read_text().replace("        pass", loud))
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(LoadError, match="failed to prepare this process"):
        ask_everything(EngineConfig(model=str(tmp_path)))
    out, err = capfd.readouterr()
    assert out == ""
    assert "loud" in err


def test_why_cannot_steer_a_terminal(site):
    site.platform("acme-gpu", "acme", verdict=r"Accept(1, '\x1b[31mred')")
    assert r"\x1b[31mred" in resolve_installed().platform.why
