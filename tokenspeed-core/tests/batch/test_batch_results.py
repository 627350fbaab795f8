# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Files of results, after a run that ended at any byte."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tokenspeed.batch.errors import BatchError
from tokenspeed.batch.lines import BadLine, Line, read_lines
from tokenspeed.batch.result import Response, Result, name_of
from tokenspeed.batch.results import open_results

FAILS = (2, 5)
"""Lines that are in error: one by the server, one by itself."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    rows = [json.dumps({"custom_id": f"c{number}"}) for number in range(1, 8)]
    rows[4] = "no json"
    path.write_text("\n\n".join(rows) + "\n\n")  # every second line is blank
    return path


def result(line: Line) -> Result:
    if line.content == b"no json":
        return Result.bad(line, BadLine(None, "invalid_line", "é\n"))
    number = json.loads(line.content or b"")["custom_id"]
    status = 400 if number == "c2" else 200
    return Result(name_of(line), number, response=Response(status, None, {"text": f"{number}\n"}))


def finish(source: Path, most: int | None = None) -> tuple[Path, Path]:
    """Go on where the files are, for so many lines."""
    output, errors = source.with_name("out.jsonl"), source.with_name("out.errors.jsonl")
    with open_results(source, output, errors, overwrite=False) as results:
        left = [line for line in read_lines(source) if line.number > results.done.line]
        for line in left[:most]:
            results.write(result(line))
    return output, errors


def test_good_and_bad_lines_are_apart_and_in_order(source: Path) -> None:
    output, errors = finish(source)
    good = [json.loads(line) for line in output.read_text().splitlines()]
    bad = [json.loads(line) for line in errors.read_text().splitlines()]
    assert [each["id"] for each in good] == [f"line-{n}" for n in (1, 5, 7, 11, 13)]
    assert [(each["id"], each["custom_id"]) for each in bad] == [("line-3", "c2"), ("line-9", None)]
    assert bad[0]["response"]["status_code"] == 400
    assert bad[0]["error"] is None
    assert bad[1]["response"] is None
    assert bad[1]["error"] == {"code": "invalid_line", "message": "é\n"}


@pytest.mark.parametrize("which", [0, 1], ids=["output", "errors"])
def test_a_run_goes_on_from_any_byte(source: Path, which: int) -> None:
    """Whatever is lost of the end of one file, the next run makes both as if nothing had been."""
    wanted = [path.read_bytes() for path in finish(source)]
    paths = finish(source)
    for kept in range(len(wanted[which])):
        with paths[which].open("r+b") as file:
            file.truncate(kept)
        assert [path.read_bytes() for path in finish(source)] == wanted, kept


def test_what_was_done_is_known(source: Path) -> None:
    output, errors = finish(source, most=4)
    with open_results(source, output, errors, overwrite=False) as results:
        done = results.done
    assert (done.line, done.answered, done.failed, done.complete) == (7, 3, 1, False)
    assert source.read_bytes()[: done.bytes].endswith(b'"c4"}\n')
    finish(source)
    with open_results(source, output, errors, overwrite=False) as results:
        done = results.done
    assert (done.line, done.answered, done.failed, done.complete) == (13, 5, 2, True)
    with open_results(source, output, errors, overwrite=True) as results:
        assert results.done.line == 0
    assert output.read_bytes() == b""
    assert not errors.exists()


def test_results_of_another_input_are_left_alone(source: Path) -> None:
    output, errors = finish(source)
    before = output.read_bytes()
    source.write_text(source.read_text().replace("c4", "other"))
    with (
        pytest.raises(BatchError, match=r"its line-7 is 'c4', the input's is 'other'.*--overwrite"),
        open_results(source, output, errors, overwrite=False),
    ):
        pass
    assert output.read_bytes() == before


@pytest.mark.parametrize("lines", [0, 1, 2, 3, 6])
def test_results_of_lines_that_the_input_lacks_are_left_alone(source: Path, lines: int) -> None:
    """The input is empty, or shorter than the one that was answered."""
    paths = finish(source)
    before = [path.read_bytes() for path in paths]
    source.write_text("".join(source.read_text().splitlines(keepends=True)[: 2 * lines]))
    with pytest.raises(BatchError, match=r"lines that INPUT does not have; choose .*--overwrite"):
        finish(source)
    assert [path.read_bytes() for path in paths] == before


def test_half_a_result_of_a_line_that_the_input_lacks_is_left_alone(source: Path) -> None:
    output, _ = finish(source)
    output.write_bytes(output.read_bytes()[:-1])  # all of it but the line break
    before = output.read_bytes()
    source.write_text("".join(source.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(BatchError, match="lines that INPUT does not have"):
        finish(source)
    assert output.read_bytes() == before


def test_results_behind_a_gap_are_of_this_input_before_they_are_cut(source: Path) -> None:
    output, _ = finish(source)
    before = output.read_bytes()
    source.write_text("\n" + source.read_text())  # line-1 is line 2 there
    with pytest.raises(BatchError, match="lines that INPUT does not have"):
        finish(source)
    assert output.read_bytes() == before


@pytest.mark.parametrize("content", ["my notes\n", "my notes", '{"id": "x"}\n', "[]\n", "{"])
@pytest.mark.parametrize("name", ["out.jsonl", "out.errors.jsonl"])
def test_a_file_that_is_no_batch_is_left_alone(source: Path, content: str, name: str) -> None:
    path = source.with_name(name)
    path.write_text(content)
    if content == "{":  # might be the beginning of a result
        finish(source)
        return
    with pytest.raises(BatchError, match=r"its line 1 is no result of a batch; choose another"):
        finish(source)
    assert path.read_text() == content


def test_two_runs_do_not_write_one_file(source: Path) -> None:
    output, errors = finish(source, most=1)
    with (
        open_results(source, output, errors, overwrite=False),
        pytest.raises(BatchError, match="another run writes"),
        open_results(source, output, errors, overwrite=False),
    ):
        pass


@pytest.mark.parametrize("overwrite", [False, True])
def test_two_runs_do_not_write_one_file_of_errors(source: Path, overwrite: bool) -> None:
    output, errors = finish(source, most=2)
    before = errors.read_bytes()
    with (
        open_results(source, output, errors, overwrite=False),
        pytest.raises(BatchError, match=r"another run writes .*out\.errors"),
        open_results(source, source.with_name("other"), errors, overwrite=overwrite),
    ):
        pass
    assert errors.read_bytes() == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_of_errors_is_of_the_run_that_created_it(source: Path, overwrite: bool) -> None:
    """Both begin without one; it is the first one's, after its end as well."""
    errors = source.with_name("e")
    if overwrite:
        errors.write_text("old")
    first, second = (source.with_name(name) for name in "ab")
    bad = Result.bad(Line(1, b"", 0), BadLine("c1", "invalid_line", "x"))
    with ExitStack() as stack:
        opened = stack.enter_context(open_results(source, first, errors, overwrite=overwrite))
        late = stack.enter_context(open_results(source, second, errors, overwrite=False))
        assert not errors.exists()
        opened.write(bad)
        before = errors.read_bytes()
        for _ in range(2):
            with pytest.raises(BatchError, match="another run writes"):
                late.write(bad)
            opened.flush()
    assert errors.read_bytes() == before


def test_a_full_disk_is_said_and_gone_on_from(source: Path) -> None:
    wanted = [path.read_bytes() for path in finish(source)]
    for path in finish(source):
        path.unlink()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(wanted[0]) // 2 + 3, hard))
    try:
        with pytest.raises(
            BatchError, match=r"cannot write .*out\.jsonl: File too large; see that"
        ):
            finish(source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert source.with_name("out.jsonl").stat().st_size == len(wanted[0]) // 2 + 3
    assert [path.read_bytes() for path in finish(source)] == wanted


def test_a_disk_that_fails_at_the_end_is_said(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(BatchError, match=r"cannot write .*out\.jsonl: Input/output error"):
        finish(source)
    monkeypatch.undo()
    assert len(finish(source)[0].read_text().splitlines()) == 5  # no lock is left


def test_the_input_is_never_written(source: Path) -> None:
    with (
        pytest.raises(BatchError, match="must be three files"),
        open_results(source, source, source.with_name("e"), overwrite=True),
    ):
        pass
    assert source.stat().st_size > 0


@pytest.mark.parametrize("link", [Path.hardlink_to, Path.symlink_to])
@pytest.mark.parametrize(("old", "new"), [("in", "out"), ("in", "e"), ("out", "e")])
def test_three_names_are_not_three_files(
    source: Path, link: Callable[[Path, Path], None], old: str, new: str
) -> None:
    paths = {name: source.with_name(f"{name}.jsonl") for name in ("in", "out", "e")}
    if old == "out":
        paths[old].write_text("mine\n")
    before = paths[old].read_bytes()
    link(paths[new], paths[old])
    with (
        pytest.raises(BatchError, match="must be three files"),
        open_results(*paths.values(), overwrite=True),
    ):
        pass
    assert paths[old].read_bytes() == before


def test_an_input_that_can_be_read_once_is_refused(tmp_path: Path) -> None:
    pipe, output = tmp_path / "pipe", tmp_path / "out.jsonl"
    os.mkfifo(pipe)
    with (
        pytest.raises(BatchError, match=r"pipe is no regular file, .*; write it to a file first"),
        open_results(pipe, output, tmp_path / "e", overwrite=False),
    ):
        pass
    assert not output.exists()


def test_a_place_that_cannot_be_written_is_named(source: Path) -> None:
    with (
        pytest.raises(
            BatchError, match=r"cannot write .*nowhere.*: there is no folder .*nowhere; make it"
        ),
        open_results(source, source.parent / "nowhere" / "o", source.parent / "e", overwrite=False),
    ):
        pass
