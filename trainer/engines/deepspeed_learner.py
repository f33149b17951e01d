"""One rank of a learner whose weights and optimizer state DeepSpeed shards over the ranks.

    the update's batch ─▶ micro-batches, dealt over ranks ─▶ this rank's, one after the other
      ─▶ Objective.loss through the engine ─▶ engine.backward ─▶ (last) engine.step, or none

Every rank runs the same number of passes, some of them empty, because each pass is a collective
operation. Token weights sum to one over all ranks, but DeepSpeed divides by the number of ranks, so
each rank multiplies its loss by that number.
"""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from agentrl.checkpoints.manifest import Probe
from agentrl.core.config.sections import DeepSpeed
from agentrl.core.errors import CheckpointError, ConfigError
from agentrl.trainer.algorithm.metrics import TokenRecord, measure
from agentrl.trainer.algorithm.objective import Objective
from agentrl.trainer.algorithm.presets import Settings
from agentrl.trainer.batch import Batch
from agentrl.trainer.engines import deepspeed_build, zero_shards
from agentrl.trainer.engines.learner import Hardware, Metrics
from agentrl.trainer.engines.ranks import Ranks
from agentrl.trainer.model import optimizer, trainable_model
from agentrl.trainer.model.packing import MicroBatch, balance_over_ranks
from agentrl.trainer.model.token_scores import Scores, score_tokens
from agentrl.trainer.model.trainable_model import (
    TrainableModel,
    make_trainable,
    trainable_parameters,
)
from agentrl.trainer.snapshots import State, random_state, set_random_state

FOUND = ("logprobs", "entropy", "loss", "kl", "clipped")  # of a Recorded


class Scoring(nn.Module):
    """The head with scoring, as one module.

    Ranks have different numbers of chunks. As one module, ZeRO 3 gathers the head only once, before
    the first chunk.
    """

    def __init__(self, head: nn.Module) -> None:
        """Raises CheckpointError if the head is not linear."""
        super().__init__()
        if not isinstance(head, nn.Linear):
            raise CheckpointError(f"{type(head).__name__}: DeepSpeed needs a linear head")
        self.head = head

    def forward(self, hidden: Tensor, temperature: Tensor, targets: Tensor, most: int) -> Scores:
        """See agentrl.trainer.model.token_scores.scores."""
        head = partial(linear, weight=self.head.weight, bias=self.head.bias)
        return score_tokens(head, hidden, temperature, targets, most)


class Net(nn.Module):
    """The module that ZeRO shards: the model and, if the KL term needs it, the reference.

    It is called with a function to compute, because DeepSpeed's hooks are around its call.
    """

    def __init__(self, tuned: TrainableModel) -> None:
        super().__init__()
        self.model = tuned.model
        with tuned.reference() as first:
            self.first = None if first is tuned.model or first is None else first
        if self.first is not None:
            self.first.requires_grad_(requires_grad=False)
        models = [each for each in (self.model, self.first) if each is not None]
        self.scorings = nn.ModuleList([Scoring(each.get_output_embeddings()) for each in models])

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()

    def score(self, head: nn.Module, *given: Any) -> Scores:
        """Replacement of agentrl.trainer.model.token_scores.scores, through the module of this
        head.
        """
        scoring = next(each for each in self.scorings if each.head is head)
        found: Scores = scoring(*given)
        return found


class DeepSpeedLearner:
    """A rank of a DeepSpeed learner. Trained weights are fp32; dropout is off, so ratios start at
    one.
    """

    def __init__(
        self,
        model_path: Path,
        settings: Settings,
        hardware: Hardware,
        section: DeepSpeed,
        ranks: Ranks,
    ) -> None:
        """`model_path`: the run's first checkpoint, see TorchLearner.

        Raises CheckpointError, and ConfigError also if DeepSpeed or an extension is missing.
        """
        if hardware.device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(
                f"model.device: this machine has no {hardware.device}", hint='set it to "cpu"'
            )
        torch.set_num_threads(hardware.threads)
        library = zero_shards.import_deepspeed(hardware.device)
        self._settings = settings
        self._dtype: torch.dtype = getattr(torch, hardware.dtype)
        self._ranks = ranks
        self._sharded = section.zero == 3
        self._tuned = make_trainable(model_path, settings, hardware)
        self._net = Net(self._tuned)
        self._objective = Objective(
            settings, hardware, self._tuned.reference, score=self._net.score
        )
        self._engine = _engine(library, self._net, settings, section, ranks)
        self._shards = zero_shards.Shards(library, self._engine, section.zero)
        self._updates = 0
        self._generators: dict[str, Tensor] = {}  # of a state that is being placed

    def update(self, batch: Batch) -> Metrics:
        """See Learner.update. All ranks skip together."""
        began = time.perf_counter()
        recorded = TokenRecord.empty(batch.tokens.size)
        rate = optimizer.learning_rate(self._settings, self._updates)
        skipped, norm = "no loss token", 0.0
        if batch.shares.any():
            optimizer.set_learning_rate(self._engine.basic_optimizer, rate)
            skipped, norm = self._learn(batch, recorded)
            self._updates += not skipped
        values = measure(batch, recorded)
        values |= {"learning_rate": rate, "seconds": time.perf_counter() - began}
        if math.isfinite(norm):
            values["grad_norm"] = norm
        return Metrics(values, skipped)

    def weights(self) -> dict[str, Tensor]:
        """See RankWorker.weights."""
        found: dict[str, Tensor] = {}
        for name, parameter in trainable_parameters(self._net.model).items():
            with self._shards.whole(parameter) as gathered:
                if self._ranks.rank == 0:
                    found |= trainable_model.tensors_to_save({name: gathered}, self._dtype)
        return found

    def write(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """See RankWorker.write; weights are in the hardware's dtype."""
        self._tuned.save(directory, weights)

    def probe(self) -> Probe:
        """See Learner.probe; with sharded weights only products have the saved dtype."""
        model = self._net.model
        if not self._sharded:
            return trainable_model.make_probe(model, self._dtype)

        def said(ids: Tensor) -> Tensor:
            with self._objective.precision():
                found: Tensor = self._net(lambda: model(input_ids=ids, use_cache=False).logits)
            return found

        return trainable_model.probe_with(said, model)

    def state(self) -> State:
        """See RankWorker.state."""
        generators = random_state()
        tensors = dict(generators.tensors)
        self._shards.link()
        for name, parameter in trainable_parameters(self._net.model).items():
            moments = self._shards.moments(parameter)
            with self._shards.whole(parameter) as gathered:
                if self._ranks.rank == 0:
                    tensors[f"weights/{name}"] = gathered.detach().cpu().clone()
                    tensors |= {f"optimizer/{key}/{name}": value for key, value in moments.items()}
        return State(tensors, {"updates": self._updates, **generators.values})

    def check_shapes(self, shapes: Mapping[str, list[int]]) -> None:
        """See RankWorker.check_shapes; then there is room for the state's moments."""
        zero_shards.check_shapes(trainable_parameters(self._net.model), shapes)
        keys = {name.split("/")[1] for name in shapes if name.startswith("optimizer/")}
        self._shards.make_room(keys)

    def load_tensor(self, name: str, tensor: Tensor) -> None:
        """See RankWorker.load_tensor."""
        kind, _, rest = name.partition("/")
        parameters = trainable_parameters(self._net.model)
        if kind == "weights":
            self._shards.set_weight(parameters[rest], tensor)
        elif kind == "optimizer":
            key, _, own = rest.partition("/")
            self._shards.set_moment(parameters[own], key, tensor)
        else:
            self._generators[name] = tensor

    def finish_load(self, values: Mapping[str, Any]) -> None:
        """See RankWorker.finish_load."""
        self._updates = int(values["updates"])
        set_random_state(State(self._generators, values))

    def _learn(self, batch: Batch, recorded: TokenRecord) -> tuple[str, float]:
        """Run all passes and the step; return why it was skipped, and the gradient norm."""
        budget = self._settings.micro_batch_tokens if self._settings.packing else 1
        own = balance_over_ranks(batch, budget, self._ranks.size)[self._ranks.rank]
        for micro in own[:-1]:
            self._pass(micro, batch, recorded, last=False)
        total = self._pass(own[-1], batch, recorded, last=True)
        norm, stepped = self._step(total)
        self._gather(recorded, own)
        if stepped:
            return "", norm
        return (
            "gradient norm is not finite" if math.isfinite(total) else "loss is not finite"
        ), norm

    def _pass(self, micro: MicroBatch, batch: Batch, recorded: TokenRecord, *, last: bool) -> float:
        """Add the gradient of one micro-batch; the last one returns the update's whole loss.

        A non-finite loss on one rank makes the gradient non-finite on all.
        """
        engine = self._engine
        engine.set_gradient_accumulation_boundary(last)
        loss = engine(lambda: self._objective.loss(self._net.model, micro, batch, recorded))
        total = 0.0
        if last:
            total = float(
                self._ranks.sum_values(np.array([recorded.loss.sum(dtype=np.float64)]))[0]
            )
            if not math.isfinite(total):
                loss = loss * math.nan
        engine.backward(loss * self._ranks.size, scale_wrt_gas=False)
        return total

    def _step(self, total: float) -> tuple[float, bool]:
        """Step; return the gradient norm over all ranks, and whether the optimizer has stepped.

        ZeRO skips a non-finite gradient itself; without ZeRO we do.
        """
        engine, bound = self._engine, self._settings.max_grad_norm
        if engine.zero_optimization():
            engine.step()
            return float(engine.get_global_grad_norm()), bool(engine.was_step_applied())
        norm = float(
            nn.utils.clip_grad_norm_(trainable_parameters(self._net.model).values(), bound)
        )
        if math.isfinite(norm) and math.isfinite(total):
            engine.step()
            return norm, True
        engine.zero_grad()
        return norm, False

    def _gather(self, recorded: TokenRecord, own: list[MicroBatch]) -> None:
        """Gather the recorded values of all ranks."""
        places = np.concatenate([micro.sources for micro in own])
        every = np.zeros((len(FOUND), recorded.loss.size))
        for row, name in zip(every, FOUND, strict=True):
            row[places] = getattr(recorded, name)[places]
        counted = np.zeros(recorded.loss.size)
        counted[places] = 1.0
        *rows, seen = self._ranks.sum_values(np.vstack([every, counted]))
        chosen = np.flatnonzero(seen)
        recorded.put(chosen, {name: row[chosen] for name, row in zip(FOUND, rows, strict=True)})


def _engine(library: Any, net: Net, settings: Settings, section: DeepSpeed, ranks: Ranks) -> Any:
    """Create DeepSpeed's engine; afterwards the net is equal on all ranks."""
    from deepspeed.utils import groups

    if section.zero == 3:
        library.utils.set_z3_leaf_modules(net, [Scoring])
    parameters = trainable_parameters(net.model).values()
    if section.offload != "none" and settings.optimizer == "adamw":
        deepspeed_build.load_optimizer(section.extensions)
        chosen: Any = library.ops.adam.DeepSpeedCPUAdam(
            optimizer.parameter_groups(parameters, settings),
            lr=settings.learning_rate,
            adamw_mode=True,
        )
    else:
        chosen = optimizer.make_optimizer(parameters, settings)
    ranks.barrier()  # who has loaded waits for who has not
    library.init_distributed(verbose=False)
    groups._WORLD_GROUP = ranks.group()  # noqa: SLF001  # else one whose waits take 30 minutes
    engine, *_ = library.initialize(
        model=net,
        optimizer=chosen,
        config=zero_shards.deepspeed_config(section, settings.max_grad_norm),
        dist_init_required=False,
    )
    return engine
