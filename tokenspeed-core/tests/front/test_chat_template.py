# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A template comes with the model: it sees messages, and nothing else of this process."""

from __future__ import annotations

from typing import Any

import pytest
from tokenspeed.front.chat_template import ChatTemplate
from tokenspeed.front.errors import InvalidRequest

HELLO = [{"role": "user", "content": "Hello"}]


def rendered(source: str) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(HELLO)


def test_what_templates_are_written_with_works() -> None:
    assert rendered("{{ bos_token }}{{ messages[0]['content'] | upper }}") == "<s>HELLO"
    assert rendered("{{ messages | tojson }}") == '[{"role": "user", "content": "Hello"}]'
    assert rendered("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}") == "user"
    with pytest.raises(InvalidRequest, match="accepts: no"):
        rendered("{{ raise_exception('no') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['os'] }}",
        "{{ strftime_now.__code__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ lipsum.__globals__ }}",
        "{{ namespace.__init__ }}",
        "{{ messages[0].pop.__self__ }}",
        "{{ '{0.__class__}'.format('') }}",
        "{{ '{0.__class__}' | format('') }}",
        "{{ ('%s' % messages).format.__self__ }}",
        "{% set x = ''.format_map %}{{ x({'a': 1}).__class__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ messages[0].clear() }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}",
        "{% extends 'config.json' %}",
        "{{ range(10 ** 9) | list }}",
        "{{ 1 // 0 }}",
        "{{ 'a' + 1 }}",
    ],
)
def test_a_malicious_one_is_an_error_and_reaches_nothing(source: str) -> None:
    """Jinja gives an empty text for some of what it does not let out."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
    try:
        text = ChatTemplate(source, {}).render(messages)
    except (InvalidRequest, ValueError):
        text = ""
    assert not {"class", "<", "object", "root", "module"} & {*text.replace("'", " ").split()}
    assert "<" not in text, text
    assert messages == HELLO


@pytest.mark.parametrize("source", ["{% for %}", "{{", "{% if a %}", "{{ " + "(" * 5000])
def test_one_that_cannot_be_read_says_so(source: str) -> None:
    with pytest.raises(ValueError, match="the model's chat template cannot be read"):
        ChatTemplate(source, {})
