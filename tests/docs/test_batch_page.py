# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The command of the page on batches makes an input of the lines in error."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from distributions import ROOT
from tokenspeed.batch.lines import BadLine, parse, read_lines
from tokenspeed.batch.result import Response, Result, name_of
from tokenspeed.batch.results import open_results

SHOWN = re.search(r"```sh\n(awk .*?)```", (ROOT / "docs" / "batch.md").read_text(), re.DOTALL)
assert SHOWN is not None

GOOD = '{"custom_id": "line-9", "url": "/v1/completions", "body": {"prompt": "a-\\"b"}}'


def test_lines_in_error_become_an_input(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [GOOD, "", 'no-"json', GOOD, '{"custom_id": "x-1"}', *[GOOD] * 6, "{"]
    source.write_text("".join(f"{line}\n" for line in lines))
    with open_results(source, output, tmp_path / "out.errors.jsonl", overwrite=False) as results:
        for line in read_lines(source):
            request, response = parse(line), Response(200, None, {})
            if isinstance(request, BadLine):
                results.write(Result.bad(line, request))
            else:
                results.write(Result(name_of(line), request.custom_id, response=response))
    subprocess.run(["sh", "-euc", SHOWN[1]], cwd=tmp_path, check=True)
    wanted = ['no-"json', '{"custom_id": "x-1"}', "{"]
    assert (tmp_path / "again.jsonl").read_text().splitlines() == wanted
