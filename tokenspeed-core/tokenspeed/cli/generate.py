# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts generate: one prompt, no server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tokenspeed.cli.environment import check_environment
from tokenspeed.cli.options import check_model, engine_config, engine_options, model_folder

if TYPE_CHECKING:
    from tokenspeed.offline import LLM, SamplingParams

_NO_PROMPT = 'give PROMPT, or pipe one in: ts generate FOLDER "The capital of France is"'


@click.command()
@click.argument("model", callback=model_folder, metavar="FOLDER")
@click.argument("prompt", required=False)
@click.option("--chat", "as_chat", is_flag=True, help="The prompt is a user's chat message.")
@click.option("--max-tokens", type=int, default=128, show_default=True, help="Of the answer.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--top-k", type=int, default=-1, show_default=True)
@click.option("--min-p", type=float, default=0.0, show_default=True)
@click.option("--seed", type=int, help="By default drawn.")
@click.option("--stop", multiple=True, help="Text that ends the answer; repeatable.")
@click.option("--ignore-eos", is_flag=True, help="Do not end at the model's end token.")
@engine_options
def generate(model: str, prompt: str | None, as_chat: bool, **values: Any) -> None:
    """Continue PROMPT, or what comes on standard input, with the model in FOLDER."""
    check_environment()
    text = _prompt(prompt)
    engine = engine_config(model, values)
    check_model(engine)

    from tokenspeed.offline import LLM, RequestError, SamplingParams

    try:
        with LLM(**msgspec.structs.asdict(engine)) as llm:
            _print_answer(llm, text, as_chat, SamplingParams(**values))
    except BrokenPipeError:
        raise  # the reader has enough, as "head" has: click ends quietly
    except (RequestError, OSError, RuntimeError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo()
        sys.exit(130)


def _prompt(argument: str | None) -> str:
    """UsageError when there is none, or when it is no text."""
    if argument is None and (sys.stdin is None or sys.stdin.isatty()):
        raise click.UsageError(_NO_PROMPT)
    try:
        text = sys.stdin.read() if argument is None else argument
        text.encode()  # bytes that are no text came in as lone surrogates
    except UnicodeError as error:
        raise click.UsageError("the prompt is not UTF-8 text; convert it, as with iconv") from error
    if not text and argument is None:
        raise click.UsageError(_NO_PROMPT)
    return text


def _print_answer(llm: LLM, text: str, as_chat: bool, sampling: SamplingParams) -> None:
    prompt = llm.chat_prompt([{"role": "user", "content": text}]) if as_chat else text
    for output in llm.stream(prompt, sampling):
        click.echo(output.text, nl=False)
        sys.stdout.flush()
    click.echo()
