# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Files of a model's folder: of this folder, of a bounded size, and what they should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tokenspeed_sdk.model_files import check_place, read_object, read_text


def test_reads_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"a": "é"}')
    assert read_object(file) == {"a": "é"}
    assert read_text(file, most=11) == '{"a": "é"}'


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "is not JSON: .*; download it again"),
        (b"[" * 100_000, "is not JSON: maximum recursion depth"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "is not JSON: .*limit"),
        (b"[1]", "must hold a JSON object"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_what_is_no_object_says_so(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=why):
        read_object(file)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)  # it takes no room
    with pytest.raises(ValueError, match="has more than 16 MiB"):
        read_object(file)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ValueError, match="is not a file"):
        read_object(tmp_path / "config.json")


def test_links_lead_nowhere_else(tmp_path: Path) -> None:
    folder, secret = tmp_path / "model", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("{}")
    for name, target in (("a.json", secret), ("b.json", "../secret"), ("c.json", "a.json")):
        (folder / name).symlink_to(target)
        with pytest.raises(ValueError, match=r"is a link to .*secret, outside of its folder"):
            read_object(folder / name)
    (folder / "own.json").write_text("{}")
    (folder / "d.json").symlink_to("own.json")
    assert read_object(folder / "d.json") == {}
    (tmp_path / "name").symlink_to(folder)
    assert read_object(tmp_path / "name" / "own.json") == {}, "a folder may have another name"


def test_the_hubs_cache_links_to_its_blobs(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "1"
    for folder in (blobs, snapshot):
        folder.mkdir(parents=True)
    (blobs / "f00").write_text("{}")
    (tmp_path / "models--x" / "other").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/f00")
    (snapshot / "bad.json").symlink_to("../../other")
    assert read_object(snapshot / "config.json") == {}
    with pytest.raises(ValueError, match="outside of its folder"):
        check_place(snapshot / "bad.json")
