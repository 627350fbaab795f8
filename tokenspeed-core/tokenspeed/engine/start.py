# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""From a launch plan to a running loop: device, model, weights, KV pool, scheduler.

Each phase is timed and told to the front, which shows it on the admin port.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from tokenspeed_sdk.contracts.platform import HOST_MEMORY
from tokenspeed_sdk.model_files import read_object
from tokenspeed_sdk.modeling import BuildContext, ConfigReader, WeightMap, load_dummy, load_weights

from tokenspeed._scheduler import Config, Scheduler, max_copies, max_transfer_pages
from tokenspeed.cache.transfers import PageMover
from tokenspeed.engine.buffers import Limits
from tokenspeed.engine.device_step import DeviceStep
from tokenspeed.engine.draft_model import DraftFolder, Drafting
from tokenspeed.engine.drafters import choose_drafter, guesses_with_model, open_drafter
from tokenspeed.engine.dry_step import dry_steps
from tokenspeed.engine.executor import Executor
from tokenspeed.engine.formats import Formats, warn_of_default_scales
from tokenspeed.engine.grammar import GrammarLoader, Grammars
from tokenspeed.engine.loop import EngineLoop
from tokenspeed.engine.mailbox import Mailbox
from tokenspeed.engine.memory import longest_request
from tokenspeed.engine.speculation import Speculation
from tokenspeed.engine.tiers import KvTiers, allocate_kv, scheduler_config
from tokenspeed.engine.verify import PageTableVerifier
from tokenspeed.engine.workspace import measure_workspace
from tokenspeed.front.model_folder import ModelFolder
from tokenspeed.grammar.backends import Backends
from tokenspeed.grammar.vocabulary import read_vocabulary
from tokenspeed.messages import EngineFailed, EngineLoading, EngineReady
from tokenspeed.plugins.errors import describe
from tokenspeed.plugins.load.plugin_code import as_failure
from tokenspeed.process.failure import StartError
from tokenspeed.registry.autotune import Autotuner
from tokenspeed.registry.candidates import NoKernelError
from tokenspeed.registry.kernels import KernelRegistry
from tokenspeed.registry.models import load_model

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.drafter import DraftModel
    from tokenspeed_sdk.contracts.grammar import Vocabulary
    from tokenspeed_sdk.contracts.model import CacheGroup, Model
    from tokenspeed_sdk.contracts.platform import Device, Platform

    from tokenspeed.cache.slab import Beside
    from tokenspeed.config import EngineConfig
    from tokenspeed.engine.drafters import Backend
    from tokenspeed.process.launch import LaunchPlan

log = logging.getLogger(__name__)

Tell: TypeAlias = Callable[[str], None]

PROGRESS_SECONDS = 2.0
"""How often loading is logged."""


@dataclass(frozen=True)
class LoadedModel:
    """A model whose weights are on the device, with what its config says.

    Attributes:
        draft_model, beside: of a drafter with a model, and what it keeps in every page.
    """

    model: Model
    registry: KernelRegistry
    context: BuildContext
    groups: tuple[CacheGroup, ...]
    architecture: str
    vocab_size: int
    weight_bytes: int
    draft_model: DraftModel | None = None
    beside: Beside | None = None


@contextmanager
def start_engine(
    plan: LaunchPlan, platform: Platform, doing: Tell, tell: Tell
) -> Iterator[EngineLoop]:
    """Build everything and say that the engine is ready; release it at the end.

    Args:
        doing: hears, until then, whose kernel will run, for one may end the process.
        tell: hears of each phase, beside the front.

    What ends it early is told to the front, so that open requests end with the cause. Work that is
    queued ends first, also when a signal asks to end: a thread that is torn out of it aborts.
    """
    mailbox = Mailbox(plan.ipc)
    try:
        with _explained():
            executor, loop = build_engine(plan, platform, mailbox, doing, tell)
        with closing(executor):
            yield loop
    except BaseException as raised:
        _fail(raised, mailbox)
    finally:
        mailbox.close()


def _fail(raised: BaseException, mailbox: Mailbox) -> NoReturn:
    """Tell the front, and raise it; also what would end this process without a word."""
    error = as_failure(raised, "the engine")
    mailbox.send(EngineFailed(str(error) if isinstance(error, StartError) else describe(error)))
    raise error


@contextmanager
def _explained() -> Iterator[None]:
    """What is wrong with config, pins, weights or memory is said without a traceback."""
    try:
        yield
    except (ValueError, MemoryError, OSError, NoKernelError) as error:
        log.debug("the engine cannot start", exc_info=error)
        notes = getattr(error, "__notes__", ())  # such as whose kernel raised it
        raise StartError("\n  ".join([str(error), *notes])) from error


def build_engine(
    plan: LaunchPlan,
    platform: Platform,
    mailbox: Mailbox,
    doing: Tell = lambda what: None,
    tell: Tell = lambda phase: None,
) -> tuple[Executor, EngineLoop]:
    """Everything from the device to the loop; the mailbox hears of each phase and of the end."""
    config = plan.engine
    phase = partial(_phase, mailbox, tell)
    device = platform.open()
    backend = choose_drafter(config, plan.plugins.of("drafter"))
    with phase("load model", "use a smaller model"):
        loaded = _load(plan, device, mailbox, doing, backend)
    with phase("measure workspace", "lower --max-step-tokens"):
        workspace = _workspace(loaded, device, config)
    kv = allocate_kv(config, loaded.groups, loaded.context, device, workspace, phase, loaded.beside)
    planning = scheduler_config(config, loaded.groups, kv)
    with phase("capture graphs", "lower --max-num-seqs, or give --no-graphs"):
        may_mask = bool(plan.plugins.of("grammar"))
        executor = _executor(loaded, device, config, kv, planning, doing, may_mask=may_mask)
    drafter = open_drafter(
        backend, config, max_model_len=kv.budget.max_model_len, vocab_size=loaded.vocab_size
    )
    loaded.registry.check_pins()
    loaded.registry.check_wired()
    _log_summary(loaded, kv, workspace)
    mailbox.send(_ready(loaded, kv, config, planning.block_size, plan))
    gc.freeze()  # what lives now lives as long as the engine: no collection need look at it
    scheduler = Scheduler(planning)
    verifier = None
    if config.verify_page_tables:
        verifier = PageTableVerifier(scheduler, len(loaded.groups))
    kernels = ", ".join(f"{each.op} {each.kernel}" for each in loaded.registry.choices())
    return executor, EngineLoop(
        scheduler,
        executor,
        mailbox,
        verifier,
        grammars=_grammars(plan, loaded.vocab_size),
        speculation=Speculation(
            drafter,
            config.draft_tokens,
            loaded.vocab_size,
            known=not guesses_with_model(backend),
            penalties=executor.counts_guesses,
        ),
        kernels=kernels,
        kv_events=config.kv_events,
    )


def _grammars(plan: LaunchPlan, vocab_size: int) -> Grammars:
    """Nothing is loaded or read before a request needs it."""

    def vocabulary() -> Vocabulary:
        return read_vocabulary(ModelFolder(plan.engine.model), vocab_size)

    return Grammars(GrammarLoader(Backends(plan.plugins, vocabulary).library))


def _load(
    plan: LaunchPlan, device: Device, mailbox: Mailbox, doing: Tell, drafter: Backend | None
) -> LoadedModel:
    config = plan.engine
    folder = Path(config.model)
    raw = read_object(folder / "config.json")
    read = ConfigReader(raw)
    entry = load_model(plan.plugins, raw["architectures"])
    tuner = Autotuner.on(device, config.autotune, doing)
    registry = KernelRegistry(
        plan.plugins, config.pins, check_results=config.check_kernels, tuner=tuner
    )
    drafts = DraftFolder.of(drafter, config, raw)
    formats = Formats.choose(config, raw, device.capabilities)
    log.info("formats: %s", formats)
    context = BuildContext(
        kernels=registry,
        device=device.capabilities,
        torch_device=device.torch_device,
        max_model_len=longest_request(config, read.size("max_position_embeddings")),
        page_size=config.page_size,
        row_tokens=config.row_tokens,
        taps=() if drafts is None else drafts.taps,
        **asdict(formats),
    )
    model_config = entry.read_config(raw)

    def build(context: BuildContext) -> tuple[Model, DraftModel | None]:
        model = entry.build(model_config, context)
        return model, None if drafts is None else drafts.build(context, model)

    shell = replace(context, torch_device="meta")  # measured while the device is empty
    registry.rehearse(lambda: build(shell))
    model, draft_model = build(context)
    weight_bytes = _fill(model.weight_map(), config, mailbox)
    model.prepare()
    if drafts is not None and draft_model is not None:
        weight_bytes += drafts.load(draft_model)
    return LoadedModel(
        model=model,
        registry=registry,
        context=context,
        groups=entry.cache_groups(model_config),
        architecture=raw["architectures"][0],
        vocab_size=read.size("vocab_size"),
        weight_bytes=weight_bytes,
        draft_model=draft_model,
        beside=None if drafts is None else drafts.beside(context.dtype),
    )


def _fill(weights: WeightMap, config: EngineConfig, mailbox: Mailbox) -> int:
    """Load the parameters, or make them up; the bytes that they take."""
    if config.load == "dummy":
        load_dummy(weights)
    else:
        report = load_weights(weights, config.model, _Progress(mailbox))
        warn_of_default_scales(report, config.model)
    return sum(parameter.nbytes for parameter in weights.parameters.values())


def _workspace(loaded: LoadedModel, device: Device, config: EngineConfig) -> int:
    """Bytes that steps need; not measured where they come out of the host's memory."""
    if HOST_MEMORY in device.capabilities.features:
        return 0
    return measure_workspace(
        loaded.model,
        loaded.groups,
        device,
        loaded.context,
        config,
        loaded.vocab_size,
        loaded.draft_model,
        loaded.beside,
    )


def _executor(
    loaded: LoadedModel,
    device: Device,
    config: EngineConfig,
    kv: KvTiers,
    planning: Config,
    doing: Tell,
    *,
    may_mask: bool,
) -> Executor:
    limits = Limits(
        sequences=config.max_num_seqs,
        tokens=config.max_step_tokens,
        groups=len(loaded.groups),
        max_kv_len=kv.budget.max_model_len,
        page_size=config.page_size,
        copies=max_copies(planning),
        transfer_pages=max_transfer_pages(planning),
        mask_words=-(-loaded.vocab_size // 32) if may_mask else 0,
        row_tokens=config.row_tokens,
    )
    caches = [kv.slab.layers(group) for group in loaded.groups]
    drafting = Drafting.of(loaded.draft_model, kv.slab, loaded.groups[0])
    step = DeviceStep(
        loaded.model, device, loaded.context, caches, limits, loaded.vocab_size, drafting
    )
    with loaded.registry.checked_results(doing):
        dry_steps(step, device, limits, loaded.registry.row_samples())
    mover = None if kv.pool is None else PageMover(device, kv.slab, kv.pool)
    return Executor(
        step,
        device,
        limits,
        kv.slab,
        mover,
        graphs=config.graphs,
        page_tables=config.verify_page_tables,
    )


def _ready(
    loaded: LoadedModel, kv: KvTiers, config: EngineConfig, block_size: int, plan: LaunchPlan
) -> EngineReady:
    return EngineReady(
        max_model_len=kv.budget.max_model_len,
        vocab_size=loaded.vocab_size,
        page_size=config.page_size,
        total_pages=kv.budget.pages,
        max_num_seqs=config.max_num_seqs,
        dtype=loaded.context.dtype,
        platform=plan.plugins.platform,
        architecture=loaded.architecture,
        weight_bytes=loaded.weight_bytes,
        kv_bytes=kv.slab.bytes,
        kernels=loaded.registry.choices(),
        block_size=block_size,
        host_pages=kv.host_pages,
    )


def _log_summary(loaded: LoadedModel, kv: KvTiers, workspace: int) -> None:
    chosen = {bound.site.op: bound.decision.chosen for bound in loaded.registry.bound}
    log.info("kernels: %s", ", ".join(f"{op} {name}" for op, name in chosen.items()))
    log.info(
        "%s in %s: weights %.2f GB, workspace %.2f GB, %s; longest request %d tokens",
        loaded.architecture,
        loaded.context.dtype,
        loaded.weight_bytes / 1e9,
        workspace / 1e9,
        kv,
        kv.budget.max_model_len,
    )


class _Progress:
    """Tells the front every change and the log now and then how much of the weights is read."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._started = self._logged = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        self._mailbox.send(EngineLoading("load model", done, total))
        now = time.monotonic()
        if done == total or now - self._logged > PROGRESS_SECONDS:
            self._logged = now
            rate = done / max(now - self._started, 1e-9)
            log.info("weights: %.0f of %.0f MB, %.0f MB/s", done / 1e6, total / 1e6, rate / 1e6)


@contextmanager
def _phase(mailbox: Mailbox, tell: Tell, name: str, advice: str) -> Iterator[None]:
    """Time a phase; out of memory says in which one, and the one thing to do."""
    tell(name)
    mailbox.send(EngineLoading(name, 0, 0))
    started = time.monotonic()
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"out of memory while it did {name!r}: {error}; {advice}") from error
    log.info("%s: %.2f s", name, time.monotonic() - started)
