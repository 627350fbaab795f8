# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Allow and deny lists: what they mean, where they come from, and that nothing is misspelt."""

from __future__ import annotations

import pytest
from tokenspeed.plugins.choose.lists import gather
from tokenspeed.plugins.errors import ListError, UnknownNameError
from tokenspeed.plugins.host import resolve_installed

pytestmark = pytest.mark.rule("R10")


@pytest.fixture
def installed(site, monkeypatch):
    """One plugin of each kind; of kernels two."""
    for name in ("TOKENSPEED_ALLOW", "TOKENSPEED_DENY"):
        monkeypatch.delenv(name, raising=False)
    site.platform("acme-gpu", "acme")
    site.provide("fast-kernels", "kernel", "fast", claims=("rms_norm@1:fast",))
    site.provide("odd-kernels", "kernel", "odd", claims=("rms_norm@1:odd",))
    site.provide("family", "model", "llama", claims=("LlamaForCausalLM",))
    site.provide("watcher", "observer", "watch")
    return site


def names(lists):
    return [p.name for p in resolve_installed(lists=lists).plan.provisions]


@pytest.mark.parametrize(
    ("allow", "deny", "left"),
    [
        ([], [], ["fast", "odd", "llama", "watch", "acme"]),
        (["kernel=fast"], [], ["fast", "llama", "watch", "acme"]),
        (["kernel=fast,odd"], ["kernel=odd"], ["fast", "llama", "watch", "acme"]),
        (["kernel=fast-kernels"], [], ["fast", "llama", "watch", "acme"]),
        (["kernel=none"], [], ["llama", "watch", "acme"]),
        (["none", "platform=acme"], [], ["acme"]),
        (["none", "platform=acme", "kernel=odd"], [], ["odd", "acme"]),
        ([], ["kernel=fast", "kernel=odd-kernels"], ["llama", "watch", "acme"]),
        ([], ["observer=watcher"], ["fast", "odd", "llama", "acme"]),
        (["kernel=fast"], ["kernel=fast"], ["llama", "watch", "acme"]),
    ],
)
def test_what_is_left(installed, allow, deny, left):
    assert names(gather(allow, deny)) == left


def test_what_is_left_out_says_why(installed):
    resolution = resolve_installed(lists=gather(["observer=none"], ["kernel=odd"]))
    rows = {row.role: (row.chosen, row.why) for row in resolution.others}
    assert rows["kernel odd"] == ("left out", "denied: --deny kernel=odd")
    assert rows["observer watch"] == ("left out", "not allowed: --allow observer=none")


@pytest.mark.parametrize(
    ("allow", "deny", "error", "what", "fix"),
    [
        (["kernel=fats"], [], UnknownNameError, 'kernel "fats"', 'did you mean "fast"?'),
        ([], ["model=lama"], UnknownNameError, 'model "lama"', 'did you mean "llama"?'),
        (["kernels=fast"], [], UnknownNameError, 'contract "kernels"', 'did you mean "kernel"?'),
        (["fast"], [], ListError, "is not CONTRACT=NAME", "write it as --allow kernel=fast;"),
        (["kernel="], [], ListError, "is not CONTRACT=NAME", "write it as --allow kernel=NAME;"),
        (["model"], [], ListError, "is not CONTRACT=NAME", "write it as --allow model=NAME;"),
        (
            ["platform=acme,model=llama"],
            [],
            ListError,
            "names two contracts",
            "--allow platform=acme --allow model=llama",
        ),
        (["kernel=none,odd"], [], ListError, "are both allowed", "say --allow kernel=none or"),
        (["kernel=none", "kernel=odd"], [], ListError, "are both allowed", "or --allow kernel=odd"),
        ([], ["kernel=none"], ListError, "belongs to --allow", "--allow kernel=none"),
        ([], ["kernel=llama"], UnknownNameError, 'kernel "llama"', "there is"),
    ],
)
def test_a_mistake_is_an_error_with_what_to_do(installed, allow, deny, error, what, fix):
    with pytest.raises(error) as caught:
        resolve_installed(lists=gather(allow, deny))
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_the_environment_counts_where_no_flag_does(installed, monkeypatch):
    monkeypatch.setenv("TOKENSPEED_ALLOW", "none; platform=acme;kernel=fast,odd")
    monkeypatch.setenv("TOKENSPEED_DENY", "kernel=odd")
    plan = resolve_installed().plan
    assert [p.name for p in plan.provisions] == ["fast", "acme"]
    assert gather(["kernel=odd"]).allow == {"kernel": ("odd",)}  # flags replace it
    assert gather(deny=["model=llama"]).deny == {"kernel": ("odd",), "model": ("llama",)}  # add up


@pytest.mark.rule("R19")
def test_none_in_the_environment_blocks_discovery(installed, monkeypatch):
    """As the test kit does: whatever is installed on the machine has no say."""
    monkeypatch.setenv("TOKENSPEED_ALLOW", "none")
    with pytest.raises(ListError, match="the lists leave no platform") as caught:
        resolve_installed()
    assert "--allow platform=acme" in caught.value.fix


def test_a_denied_platform_is_not_to_be_allowed_for_deny_wins(installed):
    with pytest.raises(ListError, match="the lists leave no platform") as caught:
        resolve_installed(lists=gather(deny=["platform=acme"]))
    assert caught.value.fix == "take platform=acme off the deny list"


def test_a_denied_platform_that_is_named_says_so(installed):
    with pytest.raises(ListError, match=r"platform acme of acme-gpu 1\.0 is denied"):
        resolve_installed("acme", lists=gather(deny=["platform=acme"]))


def test_a_denied_kernel_that_is_pinned_says_so(installed):
    with pytest.raises(ListError, match=r"kernel odd of odd-kernels 1\.0 is left out: denied"):
        resolve_installed(pins={"rms_norm@1": "odd"}, lists=gather(deny=["kernel=odd"]))


def test_a_denied_model_that_is_asked_for_says_so(installed):
    with pytest.raises(ListError, match=r"model llama of family 1\.0, is denied"):
        resolve_installed(lists=gather(deny=["model=family"]), architectures=["LlamaForCausalLM"])


def test_a_denied_platform_is_not_asked(site):
    site.platform("acme-gpu", "acme")
    site.platform("rude-gpu", "rude", prefix="raise SystemExit('asked')\n")
    resolution = resolve_installed(lists=gather(deny=["platform=rude"]))
    assert resolution.warnings == ()


@pytest.mark.rule("R7")
def test_who_denies_one_of_two_settles_their_conflict(installed):
    installed.provide("twin", "model", "other", claims=("LlamaForCausalLM",))
    resolution = resolve_installed(
        lists=gather(deny=["model=other"]), architectures=["LlamaForCausalLM"]
    )
    assert resolution.model.owner == "family 1.0"


@pytest.mark.rule("R8")
def test_the_lists_are_part_of_the_plan(installed):
    free, listed = resolve_installed(), resolve_installed(lists=gather(["kernel=fast,odd"]))
    assert free.plan.provisions == listed.plan.provisions
    assert free.plan.hash != listed.plan.hash
    assert free.plan.differences(listed.plan) == [
        "lists here: none; there: --allow kernel=fast,odd"
    ]
