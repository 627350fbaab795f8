# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which names a project of one's own may have."""

from __future__ import annotations

import pytest
from tokenspeed_sdk.templates import Names, TemplateError

OWN = ["none", "None", "reference", "cpu", "NVIDIA", "amd", "llama", "qwen2", "Qwen3"]


@pytest.mark.parametrize("name", OWN)
def test_names_of_tokenspeeds_own_are_refused(name: str) -> None:
    with pytest.raises(TemplateError, match=f"'{name}' is a name of TokenSpeed's own"):
        Names.derive(name)


@pytest.mark.parametrize(
    "name", ["i\u0307x", "\u0130x", "x\u017f", "\u017f", "\u212aernel", "x\u0661"]
)
def test_letters_that_only_look_like_those_of_ascii_are_refused(name: str) -> None:
    with pytest.raises(TemplateError, match="cannot name a distribution"):
        Names.derive(name)


@pytest.mark.parametrize("name", ["acme-cpu", "cpu2", "no-ne", "Acme.Norm"])
def test_other_names_are_taken(name: str) -> None:
    assert Names.derive(name).package.isidentifier()
