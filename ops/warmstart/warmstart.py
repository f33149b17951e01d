"""`agentrl warmstart`: creates a starting policy by behaviour cloning.

experts or imported episodes ─▶ phase 1: clean ─▶ phase 2: faulty ─▶ measured ─▶ directory
                                                   │      ▲
                                                   └──────┘ until it succeeds seldom enough

Its state is kept in `.NAME.warmstart` beside the output directory, so the same command continues
after an interruption.
"""

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import torch

from agentrl.checkpoints import manifest
from agentrl.checkpoints.directories import publish
from agentrl.core.config.sections.training import Trainer
from agentrl.core.errors import ConfigError, ItemError
from agentrl.envs.contract import TaskSource
from agentrl.envs.registry import source
from agentrl.ops.interruption import handle_interruption
from agentrl.ops.warmstart import demonstrations
from agentrl.ops.warmstart.cloning_trainer import CloningTrainer, Lessons, PhaseRecord, Watch
from agentrl.ops.warmstart.demonstrations import Preparation, Transcript
from agentrl.ops.warmstart.expert_processes import Experts
from agentrl.ops.warmstart.model_card import REPORTED, card
from agentrl.ops.warmstart.options import Phase, WarmstartOptions, WarmstartReport
from agentrl.ops.warmstart.start_adapter import StartAdapter, StartRecord
from agentrl.ops.warmstart.state import WarmstartState
from agentrl.ops.warmstart.student_policy import ChatFormat, StudentPolicy
from agentrl.ops.warmstart.token_limits import limit_warnings
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import prepare_torch
from agentrl.trainer.model import cloning
from agentrl.trainer.model.trainable_model import AdapterModel
from agentrl.workers.conversation.template import read_template

WatchPreparation = Callable[[Preparation], None]
WatchContinuation = Callable[[int, Path], None]
Warn = Callable[[str], None]
Transcripts = Mapping[str, Sequence[Transcript]]  # of a phase, by task


def warmstart(
    options: WarmstartOptions,
    progress: Watch = lambda _: None,
    watch_preparation: WatchPreparation = lambda _: None,
    watch_continuation: WatchContinuation = lambda _step, _folder: None,
    warn: Warn = lambda _: None,
) -> WarmstartReport:
    """Create `options.out` atomically, and measure it; continue an interrupted warm start.

    `watch_continuation`: called first if an interrupted warm start is continued, with its step and
    the folder of its state. `watch_preparation`: called after each expert episode; `progress`:
    after each step. `warn`: called with each sentence about demonstrations that do not fit the run.

    The same options give the same demonstrations in the same order. Of a finished warm start whose
    adapter alone is here, only `options.out` is made again. Raises KeyboardInterrupt at SIGINT and
    SIGTERM after saving its state, ConfigError, ItemError, CheckpointError.
    """
    if options.out.exists():
        raise ConfigError(f"{options.out} exists already", hint="choose another directory")
    fingerprint = _fingerprint(options)
    if report := _restore(options, fingerprint):
        return report
    began = time.monotonic()
    kept = WarmstartState(options.out, _state_fingerprint(options, fingerprint))
    begun = kept.load()
    if begun.cloner:
        watch_continuation(begun.earlier + begun.steps, kept.folder)
    prepare_torch(Hardware(options.device, threads=options.threads))
    sources = {
        name: source(name, task.options, task.source) for name, task in options.tasks.items()
    }
    _check_items(options, sources)
    with tempfile.TemporaryDirectory() as scratch, handle_interruption() as interruption:
        transcripts = [
            _transcripts(options, sources, phase, watch_preparation, warn)
            for phase in range(len(options.phases))
        ]
        with closing(_make_student(options, transcripts, Path(scratch))) as student:
            lessons = [
                {name: student.encode(each) for name, each in phase.items()}
                for phase in transcripts
            ]
            for text in limit_warnings(lessons, options.sampling):
                warn(text)
            trainer = CloningTrainer(student, options, sources, progress, interruption, kept.save)
            steps, loss = _learn(trainer, options.phases, lessons, begun)
            report = WarmstartReport(
                out=options.out,
                parameters=student.parameters,
                demonstrations=sum(len(each) for phase in transcripts for each in phase.values()),
                steps=steps,
                loss=loss,
                skills=trainer.skills(options.measured) if options.measured else {},
                seconds=time.monotonic() - began,
            )
            _publish(student, options, report, fingerprint)
    kept.remove()
    return report


def _learn(
    trainer: CloningTrainer,
    phases: Sequence[Phase],
    lessons: Sequence[Lessons],
    begun: PhaseRecord,
) -> tuple[int, float]:
    """Train from where the warm start was interrupted. Return its steps and last loss."""
    steps, loss = 0, math.nan
    for number, phase in enumerate(phases):
        if number < begun.phase:
            trainer.pass_over(lessons[number])
            continue
        record = begun if number == begun.phase else PhaseRecord(number, earlier=steps)
        ended = trainer.learn(phase, lessons[number], record)
        steps, loss = ended.earlier + ended.steps, ended.loss
    return steps, loss


def _fingerprint(options: WarmstartOptions) -> str:
    """Return a hash of all options that determine the weights. Raises ItemError.

    Without those that change their rounding only, `threads` and `chunk_logits`: who runs out of
    memory may continue with fewer logits.
    """
    optional = {"lora": msgspec.to_builtins(options.lora)} if options.lora.rank else {}
    if options.chat_template:
        optional["template"] = read_template(Path(options.chat_template))
    if any(phase.until is not None for phase in options.phases):  # success decides its steps
        optional["limits"] = [options.sampling.max_step_tokens, options.sampling.max_tokens]
    imported = demonstrations.digest(options.imported) if options.imported else None
    deciding = optional | {
        "tasks": msgspec.to_builtins(dict(options.tasks)),
        "phases": [asdict(phase) for phase in options.phases],
        "model": manifest.weight_digests(options.model) if options.model else None,
        "imported": str(imported),
        "sizes": [options.episodes, options.batch_tokens, options.seed],
        "style": [options.style, options.dtype, options.device],
    }
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def require_same_start(options: WarmstartOptions) -> None:
    """Raise ConfigError if the existing `options.out`, an adapter's, was made with other options.

    A start with all weights has no record.
    """
    if options.model and options.lora.rank:
        start = StartAdapter(options.out, options.model)
        start.require_same_options(describe_options(options))


def describe_options(options: WarmstartOptions) -> dict[str, Any]:
    """Return what a warm start teaches, and to which model, by names for errors.

    Of `_fingerprint` without what changes the rounding alone, or training and not cloning.
    """
    return {
        "tasks": {
            name: {
                "options": dict(task.options),
                "source": task.source,
                "split": task.split,
                "max_turns": task.max_turns,
            }
            for name, task in options.tasks.items()
        },
        "phases": {str(n): asdict(phase) for n, phase in enumerate(options.phases, 1)},
        "model": manifest.weight_digests(options.model) if options.model else None,
        "imported": demonstrations.digest(options.imported) if options.imported else None,
        "episodes": options.episodes,
        "batch_tokens": options.batch_tokens,
        "seed": options.seed,
        "call_style": options.style,
        "chat_template": read_template(Path(options.chat_template))
        if options.chat_template
        else "",
        "lora": msgspec.to_builtins(options.lora),
    }


def _state_fingerprint(options: WarmstartOptions, fingerprint: str) -> str:
    """Add to a fingerprint what else determines the remaining steps of an interrupted warm start.

    That is how the experts choose, and the model's tokenizer, template and settings. Raises
    CheckpointError.
    """
    model = "" if options.model is None else manifest.text_digest(options.model)
    return f"{fingerprint} {demonstrations.EXPERT_CHOICE} {model}".rstrip()


def _check_items(options: WarmstartOptions, sources: Mapping[str, TaskSource]) -> None:
    """Raise ItemError if a split that is played has no items."""
    for name, task in options.tasks.items():
        for split in (task.split, task.eval_split)[: 2 if options.measured else 1]:
            if not sources[name].items(split):
                raise ItemError(f"task {name}: split {split} is empty")


def _transcripts(
    options: WarmstartOptions,
    sources: Mapping[str, TaskSource],
    phase: int,
    watch_preparation: WatchPreparation,
    warn: Warn,
) -> Transcripts:
    """Return the training transcripts of a phase, by task; imported ones belong to no task.

    Raises ItemError.
    """
    if options.imported:
        return {"": demonstrations.import_transcripts(options.imported, options.style)}
    seed = options.seed * len(options.phases) + phase
    noise = options.phases[phase].noise
    transcripts: dict[str, list[Transcript]] = {name: [] for name in options.tasks}
    experts = Experts(options.tasks, options.style, noise, dict(sources))
    for name, transcript in experts.episodes(options.episodes, seed, options.processes):
        transcripts[name].append(transcript)
        watch_preparation(Preparation(phase, name, len(transcripts[name]), options.episodes))
    return {
        name: demonstrations.select_fit(name, played, warn) for name, played in transcripts.items()
    }


def _make_student(
    options: WarmstartOptions, transcripts: Sequence[Transcripts], scratch: Path
) -> StudentPolicy:
    if options.model:
        model = _load(options.model, options)
        chat = ChatFormat(options.model, options.style, options.chat_template)
        return StudentPolicy(model, chat, scratch, options.dtype)
    every = (each for phase in transcripts for task in phase.values() for each in task)
    texts = [text for transcript in every for text in transcript.texts()]
    with torch.device(options.device):
        return StudentPolicy.new(texts, scratch, options.style, options.seed, options.dtype)


def _load(path: Path, options: WarmstartOptions) -> Any:
    if not options.lora.rank:
        return cloning.load(path, options.device)
    settings = resolve_settings(Trainer(lora=options.lora, packing=False))  # packed by Cloner
    return AdapterModel(path, settings, Hardware(options.device, options.dtype))


def _restore(options: WarmstartOptions, fingerprint: str) -> WarmstartReport | None:
    """Make OUT from the adapter of a finished warm start, if it is here; return its report.

    Raises ConfigError, CheckpointError.
    """
    if not options.lora.rank:
        return None
    if options.model is None:
        raise ConfigError("an adapter needs a model to be trained on", hint="give --model")
    start = StartAdapter(options.out, options.model)
    record = start.find(fingerprint)
    if record is None:
        return None
    start.restore(record)
    reported = {name: getattr(record, name) for name in REPORTED}
    return WarmstartReport(out=options.out, skills=record.skills, **reported)


def _publish(
    student: StudentPolicy, options: WarmstartOptions, report: WarmstartReport, fingerprint: str
) -> None:
    if options.model and options.lora.rank:
        reported = {name: getattr(report, name) for name in REPORTED}
        own = describe_options(options)
        record = StartRecord(fingerprint, skills=report.skills, options=own, **reported)
        StartAdapter(options.out, options.model).publish(student, card(options, report), record)
        return

    def write(directory: Path) -> None:
        student.save(directory)
        (directory / "README.md").write_text(card(options, report), "utf-8")

    publish(options.out, write, checkpoint_id=options.out.name, version=0, parent=None)
