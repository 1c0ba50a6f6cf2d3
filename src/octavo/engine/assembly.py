"""EngineConfig → a running engine: the one place that knows all the parts."""

from __future__ import annotations

import os
from dataclasses import dataclass

from octavo.cache.kv_cache import KVCacheManager
from octavo.config import ConfigError, EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.engine import Engine
from octavo.engine.plan import MemoryPlan
from octavo.formats.sources import resolve
from octavo.kernels.executor import Executor
from octavo.kernels.kv_layout import KVLayout
from octavo.kernels.native import NativeExecutor
from octavo.kernels.ops import Program
from octavo.kernels.reference import ReferenceExecutor
from octavo.models.loader import LoadedModel, load_model
from octavo.runner.kv_storage import available_memory_bytes, plan_layout, plan_max_model_len
from octavo.runner.runner import Runner
from octavo.sampling.choose import Chooser, choose_tokens
from octavo.sampling.sampler import Sampler
from octavo.scheduler.scheduler import Scheduler
from octavo.text.chat_template import ChatTemplate, chat_template_of
from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Assembly:
    """A loaded model and the engine around it."""

    config: EngineConfig
    model: LoadedModel
    engine: Engine
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    plan: MemoryPlan
    layout: KVLayout


def assemble(config: EngineConfig) -> Assembly:
    """Load the model and build every stage.

    Raises ConfigError, SourceError, GGUFError, ModelError or TokenizerError: ValueErrors for users to read.
    """
    model = load_model(resolve(config.model))
    tokenizer = Tokenizer.from_gguf(model.metadata)
    free_bytes = available_memory_bytes() - model.program.weight_bytes
    layout = plan_layout(
        model.program, model.config.context_len, config.cache, config.scheduler, free_bytes=free_bytes
    )
    max_model_len = plan_max_model_len(layout, model.config.context_len, config.scheduler.max_model_len)
    scheduler = Scheduler(
        config.scheduler,
        KVCacheManager(
            layout.num_blocks, layout.block_size, enable_prefix_caching=config.cache.enable_prefix_caching
        ),
        max_model_len=max_model_len,
        eos_token_ids=tokenizer.eos_token_ids,
        namespace=(model.fingerprint, layout.dtype),
    )
    vocab_size = model.program.vocab_size
    executor = _executor(config, model.program, layout)
    model.file.release_pages()  # the executor has its own copy of the weights
    core = EngineCore(
        scheduler,
        Runner(executor, layout.block_size),
        Sampler(vocab_size, tokenizer.eos_token_ids, _chooser(executor)),
        debug_checks=config.runtime.debug_checks,
    )
    return Assembly(
        config=config,
        model=model,
        engine=Engine(core, tokenizer, vocab_size, config.runtime.seed),
        tokenizer=tokenizer,
        chat_template=chat_template_of(model.metadata, tokenizer),
        plan=MemoryPlan.of(model.program, layout, max_model_len),
        layout=layout,
    )


def _chooser(executor: Executor) -> Chooser:
    return executor.choose_tokens if isinstance(executor, NativeExecutor) else choose_tokens


def _executor(config: EngineConfig, program: Program, layout: KVLayout) -> Executor:
    if config.runtime.executor == "reference":
        return ReferenceExecutor(program, layout)
    num_threads = config.runtime.num_threads or len(os.sched_getaffinity(0))
    try:
        return NativeExecutor(
            program,
            layout,
            num_threads=num_threads,
            max_num_tokens=config.scheduler.max_num_batched_tokens,
        )
    except MemoryError:
        raise ConfigError(
            f"the KV pool of {layout.num_bytes} bytes could not be allocated", "kv_cache_memory"
        ) from None
