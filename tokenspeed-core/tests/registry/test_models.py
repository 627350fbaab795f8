# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""From architecture to EntryClass."""

from __future__ import annotations

import sys

import pytest
from tokenspeed.plugins.errors import BrokenPromiseError
from tokenspeed.registry.models import find_model, load_model


class Llama:
    architectures = ("LlamaForCausalLM",)


class Mistral:
    architectures = ("MistralForCausalLM",)


def test_only_the_module_of_the_architecture_is_loaded(plugins):
    claims = ["LlamaForCausalLM", "MistralForCausalLM"]
    plugins.add("model", "llama", "acme", claims, EntryClass=(Llama, Mistral))
    plugins.add("model", "other", "acme", ["OtherForCausalLM"])
    del sys.modules[plugins.modules.pop()]  # would fail to load
    assert load_model(plugins.plan(), ["MistralForCausalLM"]) is Mistral
    assert load_model(plugins.plan(), ["LlamaForCausalLM"]) is Llama


def test_an_entry_class_may_stand_alone(plugins):
    plugins.add("model", "llama", "acme", ["LlamaForCausalLM"], EntryClass=Llama)
    assert load_model(plugins.plan(), ["LlamaForCausalLM"]) is Llama


def test_the_first_known_architecture_counts(plugins):
    plugins.add("model", "llama", "acme", ["LlamaForCausalLM"], EntryClass=Llama)
    name, planned = find_model(plugins.plan(), ["Unheard", "LlamaForCausalLM"])
    assert (name, planned.owner) == ("LlamaForCausalLM", "acme 1.0")


@pytest.mark.parametrize("attributes", [{}, {"EntryClass": Mistral}])
def test_a_claim_without_an_entry_class_is_a_broken_promise(plugins, attributes):
    plugins.add("model", "llama", "acme", ["LlamaForCausalLM"], **attributes)
    with pytest.raises(BrokenPromiseError, match=r"acme 1\.0 claims architecture LlamaForCausalLM"):
        load_model(plugins.plan(), ["LlamaForCausalLM"])
