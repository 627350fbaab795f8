# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Build tags of native libraries are compared before anything opens them."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import importlib_metadata
import pytest
from tokenspeed.plugins.discover import discovery
from tokenspeed.plugins.discover.build_tags import Build, installed_build, mismatches
from tokenspeed.plugins.discover.discovery import discover
from tokenspeed.plugins.errors import BuildError
from tokenspeed.plugins.host import resolve_installed
from tokenspeed_sdk.contracts.manifest import NativeLibrary

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

pytestmark = pytest.mark.rule("R15")

HERE = Build(torch="2.13.0", cuda="13", cxx="libstdc++-cxx11")


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ({}, []),
        ({"abi": "1", "torch": "2.13", "cuda": "13", "cxx": "libstdc++-cxx11"}, []),
        ({"torch": "2.13.0"}, []),
        ({"torch": "2.11"}, ["built for torch 2.11, found 2.13"]),
        ({"torch": "2.13.1"}, ["built for torch 2.13.1, found 2.13.0"]),
        ({"abi": "1.0"}, []),
        ({"abi": "1.1"}, ["built for kernel ABI 1.1, found 1.0"]),
        ({"abi": "2"}, ["built for kernel ABI 2, found 1.0"]),
        (
            {"cuda": "12", "cxx": "libc++"},
            ["built for CUDA 12, found 13", "built for C++ runtime libc++, found libstdc++-cxx11"],
        ),
    ],
)
def test_both_sides_of_every_difference_are_said(tags, found):
    assert mismatches(NativeLibrary("lib.so", **tags), HERE) == found


def test_an_abi_that_is_no_number_is_said(site):
    declare(site, abi="one")
    assert "MAJOR.MINOR" in str(discover()[0].error)


def test_a_torch_without_cuda_is_none():
    library = NativeLibrary("lib.so", cuda="13")
    assert mismatches(library, Build("2.13.0", None, None)) == ["built for CUDA 13, found none"]


@needs_torch
def test_what_is_installed_is_read_without_importing_torch():
    program = (
        "import sys; from tokenspeed.plugins.discover.build_tags import installed_build;"
        "build = installed_build(); assert 'torch' not in sys.modules;"
        "import torch; assert torch.__version__.startswith(build.torch), build;"
        "cuda = torch.version.cuda; assert build.cuda == (cuda and cuda.split('.')[0]), build"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def declare(site, file="libacme.so", **tags):
    lines = "".join(f'{name} = "{value}"\n' for name, value in tags.items())
    more = f'[[native]]\nfile = "{file}"\n{lines}'
    site.provide("acme", "kernel", "fast", claims=("rms_norm@1:fast",), more=more,
                 code="raise SystemExit('imported')")  # fmt: skip


@needs_torch
def test_a_library_for_another_torch_is_refused_before_it_is_opened(site):
    declare(site, torch="1.4", cuda="99")
    library = site.folder / "acme" / "libacme.so"
    library.write_bytes(b"no library at all")  # nobody may find that out
    (plugin,) = discover()
    assert isinstance(plugin.error, BuildError)
    release = ".".join(importlib_metadata.version("torch").split(".")[:2])
    text = f"libacme.so of acme 1.0: built for torch 1.4, found {release}; built for CUDA 99, found"
    assert text in plugin.error.what
    assert plugin.error.where == str(library)
    assert plugin.claims == {"rms_norm@1:fast"}


@pytest.mark.rule("R6")
def test_it_is_fatal_only_for_who_stands_on_it(site):
    site.platform("acme-gpu", "gpu")
    declare(site, torch="1.4")
    (site.folder / "acme" / "libacme.so").touch()
    (row,) = resolve_installed().others
    assert "built for torch 1.4" in row.why
    with pytest.raises(BuildError, match="it holds the pinned kernel"):
        resolve_installed(pins={"rms_norm@1": "fast"})


@pytest.mark.rule("R2")
def test_a_library_is_found_in_any_folder_of_the_package(sites, monkeypatch):
    """As in an editable install: sources here, what was compiled there; wherever one stands."""
    declare(sites[1])
    (sites[1].folder / "acme" / "__init__.py").unlink()
    (sites[0].folder / "acme").mkdir()
    library = sites[0].folder / "acme" / "libacme.so"
    library.touch()
    monkeypatch.chdir("/")
    (plugin,) = discover()
    assert plugin.error is None
    assert [file.path for file in plugin.native] == [str(library)]


@pytest.mark.rule("R2")
def test_a_missing_library_names_the_places_that_were_searched(site, monkeypatch):
    declare(site)
    monkeypatch.chdir(site.folder)
    (site.folder / "libacme.so").touch()  # in the working folder, which does not count
    (plugin,) = discover()
    assert isinstance(plugin.error, BuildError)
    assert "has no library libacme.so" in plugin.error.what
    assert plugin.error.where == str(site.folder / "acme")


@needs_torch
def test_tags_are_read_only_where_a_plugin_has_libraries(site, monkeypatch):
    def never():
        raise AssertionError("read")

    monkeypatch.setattr(discovery, "installed_build", never)
    site.provide("plain", "kernel", "k", claims=("rms_norm@1:k",))
    assert discover()[0].error is None
    assert installed_build().torch
