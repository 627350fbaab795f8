# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The doctor finds each illness, survives it, and says what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from tokenspeed.plugins.choose.lists import Lists, gather
from tokenspeed.plugins.discover.build_tags import NativeFile
from tokenspeed.plugins.discover.discovery import discover
from tokenspeed.plugins.doctor import apart, companions, doctor
from tokenspeed.plugins.doctor.companions import stale_requirements, versions_that_differ
from tokenspeed.plugins.doctor.doctor import examine
from tokenspeed_sdk.contracts.manifest import NativeLibrary

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

pytestmark = pytest.mark.rule("R17")


OBSERVER = """
class make:
    def request_finished(self, event):
        pass
"""


@pytest.fixture
def examined(site, sites, monkeypatch):
    """examined(): the findings about what is on the fake path, here and in the processes."""
    path = os.pathsep.join([*(str(s.folder) for s in sites), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setattr(doctor, "versions_that_differ", lambda: ())
    monkeypatch.setattr(doctor, "stale_requirements", lambda names: ())

    def examine_all(lists=Lists(), tell=None):  # noqa: B008 (frozen)
        return examine(discover(), lists, tell)

    return examine_all


def test_sound_plugins_say_what_they_are(examined, site):
    site.platform("acme-gpu", "acme")
    site.platform("other-gpu", "other", verdict="Decline('no device')")
    site.provide("watcher", "observer", "watch", code=OBSERVER)
    examination = examined()
    assert examination.findings == ()
    said = {load.provision.name: load.tried.said for load in examination.loads}
    assert said["acme"] == "accepts, score 10: is there"
    assert said["other"] == "declines: no device"
    assert said["watch"] == "request_finished"


def test_what_raises_is_found_with_its_causes(examined, site):
    cause = (
        "try:\n    import libmissing\nexcept ImportError as e:\n    raise OSError('no') from e\n"
    )
    site.platform("acme-gpu", "acme", prefix=cause)
    (finding,) = examined().findings
    assert (finding.check, finding.owner) == ("load", "acme-gpu 1.0")
    assert "OSError: no" in finding.detail
    assert "No module named 'libmissing'" in finding.what
    assert "\n" not in finding.what
    assert finding.where.endswith("acme_gpu/__init__.py:2")
    assert finding.where in finding.detail


def test_what_crashes_or_hangs_is_found_and_harms_nobody(examined, site, monkeypatch):
    monkeypatch.setattr(apart, "DEADLINE", 1.0)
    site.provide("crash", "observer", "crash", code="import os\nos.abort()")
    site.provide("hang", "observer", "hang", code="import time\ntime.sleep(60)")
    findings = {finding.owner: finding for finding in examined().findings}
    assert "was killed by SIGABRT" in findings["crash 1.0"].what
    assert "did not load within 1 s" in findings["hang 1.0"].what
    assert "--deny observer=hang" in findings["hang 1.0"].fix


def test_what_is_refused_or_in_conflict_is_found_and_not_loaded(examined, site):
    boom = "import os\nos.abort()"
    site.provide("newer", "kernel", "k", number="9.9", claims=("rms_norm@1:k",), code=boom)
    site.provide("one", "observer", "same", code=OBSERVER)
    site.provide("two", "observer", "same", code=OBSERVER)
    checks = [(f.check, f.owner) for f in examined().findings]
    assert checks == [("manifest", "newer 1.0"), ("conflict", "one 1.0 and two 1.0")]


@needs_torch
@pytest.mark.rule("R9")
def test_a_half_registered_plugin_is_found(examined, site):
    site.provide("half", "kernel", "half", claims=("rms_norm@1:half",), code="make = tuple")
    (finding,) = examined().findings
    assert "its manifest claims rms_norm@1:half; make() returns nothing" in finding.what


@pytest.mark.rule("R10")
def test_what_is_denied_does_not_matter(examined, site):
    site.provide("newer", "kernel", "k", number="9.9", claims=("rms_norm@1:k",))
    site.provide("raises", "observer", "r", code="1 / 0")
    lists = gather([], ["kernel=k", "observer=raises"], {})
    assert examined(lists).findings == ()


def test_a_library_that_does_not_open_is_found_with_the_loader_s_words(tmp_path):
    file = tmp_path / "libacme.so"
    file.write_bytes(b"this is no library")
    said = apart.open_library(NativeFile(NativeLibrary("libacme.so"), str(file)))
    assert "libacme.so" in said
    assert "header" in said or "too short" in said


def test_a_library_that_opens_says_nothing():
    assert apart.open_library(NativeFile(NativeLibrary("libc.so.6"), "libc.so.6")) == ""


def test_a_missing_library_of_a_library_is_named(examined, site):
    more = '[[native]]\nfile = "libacme.so"\n'
    site.provide("acme", "observer", "watch", code=OBSERVER, more=more)
    (site.folder / "acme" / "libacme.so").write_bytes(b"\x7fELF")
    (finding,) = examined().findings
    assert finding.check == "library"
    assert finding.what.startswith("libacme.so does not load: ")


def test_a_library_that_keeps_its_plugin_from_loading_is_one_finding(examined, site):
    """The doctor opens it, and so does the plugin."""
    more = '[[native]]\nfile = "libacme.so"\n'
    code = "import ctypes\nctypes.CDLL(__file__.replace('__init__.py', 'libacme.so'))\n"
    site.provide("acme", "observer", "watch", code=code, more=more)
    (site.folder / "acme" / "libacme.so").write_bytes(b"\x7fELF")
    examination = examined()
    (finding,) = examination.findings
    assert finding.check == "library"
    (load,) = examination.loads
    assert load.tried.where == f"{site.folder}/acme/__init__.py:2"  # and no line of ctypes


def test_a_library_whose_tags_refuse_it_is_not_opened(examined, site, monkeypatch):
    opened = []
    monkeypatch.setattr(doctor, "open_library", opened.append)
    more = '[[native]]\nfile = "libacme.so"\nabi = "9"\n'
    site.provide("acme", "kernel", "k", claims=("rms_norm@1:k",), more=more)
    (site.folder / "acme" / "libacme.so").write_bytes(b"harmful")
    (finding,) = examined().findings
    assert (finding.check, opened) == ("manifest", [])


def test_each_is_told_as_soon_as_it_was_loaded(examined, site):
    """Not in the order of their names, and one that ends its process keeps nobody waiting."""
    site.provide("a-slow", "observer", "slow", code=f"import time\ntime.sleep(4)\n{OBSERVER}")
    site.provide("b-crash", "observer", "crash", code="import os\nos._exit(0)")
    site.provide("c-fast", "observer", "fast", code=OBSERVER)
    told = []
    examination = examined(tell=lambda load: told.append(load.provision.name))
    assert sorted(told[:2]) == ["crash", "fast"]
    assert told[2:] == ["slow"]
    assert {load.provision.name for load in examination.loads} == {"slow", "crash", "fast"}
    assert [finding.owner for finding in examination.findings] == ["b-crash 1.0"]


def test_requirements_that_are_not_met_are_found(site):
    site.add("acme", None, {"tokenspeed.plugins": {"acme": "acme:x.toml"}})
    metadata = site.folder / "acme-1.0.dist-info" / "METADATA"
    metadata.write_text(
        metadata.read_text()
        + "Requires-Dist: click>=999\n"
        + "Requires-Dist: no-such-thing==1.0\n"
        + "Requires-Dist: click>=1\n"
        + "Requires-Dist: absent; extra == 'all'\n"
    )
    found = [stale.what for stale in stale_requirements(["acme"])]
    assert len(found) == 2
    assert "acme 1.0 requires click>=999, and click" in found[0]
    assert "no-such-thing is not installed" in found[1]


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (None, "acme has no readable metadata"),
        ("", "acme has no readable metadata"),
        ("Name: acme\n", "acme has no readable metadata"),
        ("Version: 1.0\nRequires-Dist: foo; os_name ~= 'x'\n", "a requirement that cannot be read"),
        ("Version: 1.0\nRequires-Dist: dep>=1\n", "dep has no readable version"),
    ],
    ids=["absent", "empty", "no-version", "undefined-comparison", "required-without"],
)
def test_metadata_that_cannot_be_read_is_a_finding(site, metadata, said):
    site.provide("acme", "kernel", "acme", claims=("rms_norm@1:acme",))
    file = site.folder / "acme-1.0.dist-info" / "METADATA"
    file.unlink()
    if metadata is not None:
        file.write_text(metadata)
    (site.folder / "dep-1.0.dist-info").mkdir()
    (stale,) = stale_requirements(["acme"])
    assert said in stale.what
    assert "acme" in stale.fix


@pytest.mark.rule("R16")
def test_companions_of_another_version_are_found(monkeypatch):
    versions = {"tokenspeed-core": "1.0", "tokenspeed-sdk": "1.0", "tokenspeed-cpu": "1.1"}

    def version(name):
        if name not in versions:
            raise companions.importlib_metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(companions.importlib_metadata, "version", version)
    (stale,) = versions_that_differ()
    assert "tokenspeed-core, tokenspeed-sdk 1.0; tokenspeed-cpu 1.1" in stale.what
    versions["tokenspeed-cpu"] = "1.0"
    assert list(versions_that_differ()) == []


def test_the_command_prints_one_line_a_finding_and_fails(site):
    """In a process of its own, with what is really installed beside it."""
    site.provide("newer", "kernel", "k", number="9.9", claims=("rms_norm@1:k",))
    program = "from tokenspeed.cli.main import main; main(prog_name='ts')"
    path = os.pathsep.join([str(site.folder), os.environ.get("PYTHONPATH", "")])

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-c", program, "plugins", "doctor", *arguments],
            env={**os.environ, "PYTHONPATH": path, "TOKENSPEED_ALLOW": "none;kernel=newer"},
            capture_output=True,
            text=True,
            check=False,
        )

    done = run()
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("manifest: ")]
    assert line.startswith("manifest: newer 1.0: newer 1.0 provides kernel")
    assert line.endswith("to do: pip install --upgrade tokenspeed-core")
    assert done.stderr.startswith("loading each part in a process of its own")
    as_json = run("--json")
    assert as_json.stderr.startswith("loading each part in a process of its own")
    data = json.loads(as_json.stdout)
    assert data["findings"][0]["fix"] == "pip install --upgrade tokenspeed-core"
    assert data["environment"]["contracts"]["kernel"] == "1.0"
    assert {"newer"} <= {plugin["id"] for plugin in data["plugins"]}
