# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Options that say how an engine runs, shared by the commands that start one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from tokenspeed_sdk.model_files import read_object

from tokenspeed.address import server_url
from tokenspeed.cli.lists import list_options
from tokenspeed.config import ConfigError, EngineConfig

Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULTS = EngineConfig(model="")
AUTOTUNE = ("auto", "off")
FORMATS = ("fp8", "int8")
KV_DTYPES = ("auto", "fp8")
DTYPES = ("auto", "float32", "bfloat16", "float16")


class Integers(click.IntRange):
    """A range whose name in messages is what a person calls its values."""

    name = "integer"


class Numbers(click.FloatRange):
    """The same with fractions."""

    name = "number"


COUNT = Integers(min=1)


def model_folder(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Callback of an option: the absolute path of a folder with a model."""
    if value is None:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise click.BadParameter(
            f"{value} {what}; give the folder of a downloaded model "
            "(config.json, tokenizer.json, *.safetensors)"
        )
    if not (folder / "config.json").is_file():
        raise click.BadParameter(
            f"{value} has no config.json; give the folder of a downloaded model that holds it"
        )
    return str(folder.resolve())


def server_address(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Callback: the URL of the server at HOST:PORT."""
    if value is None:
        return None
    try:
        return server_url(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def pins(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """Callback of a repeatable option: OP=KERNEL pairs, such as rms_norm@1=reference."""
    pinned: dict[str, str] = {}
    for pair in value:
        op, _, kernel = pair.partition("=")
        if not op or not kernel:
            raise click.BadParameter(f"{pair!r} is not OP=KERNEL, such as rms_norm@1=reference")
        if pinned.setdefault(op, kernel) != kernel:
            raise click.BadParameter(f"two kernels for {op}: {pinned[op]} and {kernel}")
    return pinned


def engine_options(command: Command) -> Command:
    """Adds the fields of EngineConfig as options; read them with ``engine_config``."""
    command = list_options(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def engine_config(model: str, values: dict[str, Any]) -> EngineConfig:
    """The config from a command's keyword arguments; takes its own out of ``values``.

    UsageError names the options that are out of range or do not fit together.
    """
    fields = {name: values.pop(name) for name in EngineConfig.__struct_fields__ if name in values}
    with usage_errors():
        return EngineConfig(model=model, **fields)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Makes a ConfigError a UsageError that names the options."""
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(error.named(_flag)) from error


def check_model(engine: EngineConfig) -> None:
    """ClickException when the folder is not complete, or the model cannot run as configured."""
    from tokenspeed.front.model_folder import ModelFolder

    config = read_config(engine.model)
    try:
        ModelFolder(engine.model)
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    tokenizer = Path(engine.model, "tokenizer.json")
    if not tokenizer.is_file():
        raise click.ClickException(f"{tokenizer} is missing; download the whole model again")
    longest = config.get("max_position_embeddings")
    if engine.max_model_len and isinstance(longest, int) and engine.max_model_len > longest:
        raise click.UsageError(
            f"--max-model-len {engine.max_model_len} is more than the model can: {longest} "
            f"(max_position_embeddings in {Path(engine.model, 'config.json')})"
        )


def read_config(folder: str) -> dict[str, Any]:
    """The model's config.json. ClickException when it is not what it should be."""
    path = Path(folder, "config.json")
    try:
        config = read_object(path)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error}; download it again") from error
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    architectures = config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise click.ClickException(
            f'{path} must hold "architectures", a list of names; it says {architectures!r}'
        )
    return config


def _flag(field: str) -> str:
    return "--pin" if field == "pins" else f"--{field.replace('_', '-')}"


DRAFTER = click.option(
    "--drafter",
    help="Guess what requests say next, so that a step returns several tokens: suffix looks up "
    "what was said before, eagle3 is a model. Each guess is verified: answers stay the same, but "
    "for rounding. Left out: nothing is guessed.",
)
DRAFTER_MODEL = click.option(
    "--drafter-model",
    type=click.Path(exists=True, file_okay=False),
    help="The model of a drafter that has one: a folder with config.json and weights.",
)

_OPTIONS = (
    click.option(
        "--max-model-len", type=COUNT, help="Longest prompt and answer together, in tokens."
    ),
    click.option("--kv-pages", type=COUNT, help="KV pages; by default as many as fit in memory."),
    click.option(
        "--host-kv-gb",
        type=Numbers(min=0),
        default=_DEFAULTS.host_kv_gb,
        show_default=True,
        help="GB of host memory that keep cached pages which the device has no room for; 0: none.",
    ),
    click.option(
        "--page-size",
        type=COUNT,
        default=_DEFAULTS.page_size,
        show_default=True,
        help="Tokens per KV page.",
    ),
    click.option(
        "--prefix-cache/--no-prefix-cache",
        default=_DEFAULTS.prefix_cache,
        show_default=True,
        help="Keep computed pages for later prompts.",
    ),
    click.option(
        "--retention/--no-retention",
        default=_DEFAULTS.retention,
        show_default=True,
        help="Keep pages of conversations that come back longer than others.",
    ),
    click.option(
        "--max-num-seqs",
        type=COUNT,
        default=_DEFAULTS.max_num_seqs,
        show_default=True,
        help="Requests that run at once.",
    ),
    click.option(
        "--max-step-tokens",
        type=COUNT,
        default=_DEFAULTS.max_step_tokens,
        show_default=True,
        help="Tokens in one step: the prefill chunk.",
    ),
    click.option(
        "--prefill-share",
        type=Numbers(0, 1, min_open=True),
        default=_DEFAULTS.prefill_share,
        show_default=True,
        help="Share of a step that prefill may take while others decode.",
    ),
    click.option(
        "--itl-target-ms",
        type=Numbers(min=0),
        default=_DEFAULTS.itl_target_ms,
        show_default=True,
        help="Aim at so many ms between tokens: prefill's share follows from it; 0: no target.",
    ),
    click.option(
        "--priority-aging-ms",
        type=COUNT,
        default=_DEFAULTS.priority_aging_ms,
        show_default=True,
        help="Waiting so long counts as much as one class of priority.",
    ),
    DRAFTER,
    DRAFTER_MODEL,
    click.option(
        "--draft-tokens",
        type=click.IntRange(1, 64),
        default=_DEFAULTS.draft_tokens,
        show_default=True,
        help="Most guesses of a request that a step verifies.",
    ),
    click.option(
        "--load",
        type=click.Choice(["auto", "dummy"]),
        default=_DEFAULTS.load,
        show_default=True,
        help="Weights: the folder's, or random ones for measuring.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        default=_DEFAULTS.dtype,
        show_default=True,
        help="Of weights and activations; auto: the platform's first choice.",
    ),
    click.option(
        "--quantization",
        type=click.Choice(FORMATS),
        help="Quantise the weights of linears while they are loaded: fp8 for GPUs, int8 for CPUs; "
        "by default as they are.",
    ),
    click.option(
        "--kv-cache-dtype",
        type=click.Choice(KV_DTYPES),
        default=_DEFAULTS.kv_cache_dtype,
        show_default=True,
        help="Of cached keys and values; auto: as the model computes.",
    ),
    click.option(
        "--graphs/--no-graphs",
        default=_DEFAULTS.graphs,
        show_default=True,
        help="Capture decode steps, where the device can.",
    ),
    click.option(
        "--verify-page-tables",
        is_flag=True,
        help="Compare the device's page tables with the scheduler's in every step; slow.",
    ),
    click.option(
        "--check-kernels",
        is_flag=True,
        help="Check what each kernel returns in every step, to find one that is at fault; slow.",
    ),
    click.option(
        "--autotune",
        type=click.Choice(AUTOTUNE),
        default=_DEFAULTS.autotune,
        show_default=True,
        help="Measure kernels that compete, once for a device and its software; off: by score.",
    ),
    click.option(
        "--threads", type=COUNT, help="CPU threads of the engine; by default all cores but one."
    ),
    click.option("--platform", metavar="NAME", help="Device type; see 'ts plugins list'."),
    click.option(
        "--pin",
        "pins",
        callback=pins,
        multiple=True,
        metavar="OP=KERNEL",
        help="Use this kernel for this op; repeatable.",
    ),
)
