"""Our DeepSpeed configuration, and access to its shards by parameter name.

ZeRO keeps weights and optimizer state in flat pieces, a part of each on every rank. This module
reads and writes whole parameters, one at a time, so a snapshot does not depend on the number of
ranks.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.core.config.sections.training import DeepSpeed
from agentrl.core.errors import ConfigError
from agentrl.trainer.engines.ranks import Ranks

KEPT_WHOLE = 10_000  # elements: with ZeRO 3 every rank keeps tensors up to this size, like norms
STEP = "step"  # of Adam's states the one that is no tensor of the weight's shape


def import_deepspeed(device: str) -> Any:
    """Import DeepSpeed for this device. Raises ConfigError if it is not installed."""
    os.environ.setdefault("DS_ACCELERATOR", device.partition(":")[0])
    try:
        import deepspeed
        import deepspeed.ops
    except ImportError as error:
        raise ConfigError(
            'trainer.engine = "deepspeed", but DeepSpeed is not installed',
            hint="run `pip install 'agentrl-system[deepspeed]'`",
        ) from error
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    deepspeed.utils.logger.setLevel("ERROR")
    # Compiled where it is first used, which is never inside training, and used by inference alone.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def deepspeed_config(section: DeepSpeed, max_grad_norm: float, weights: str) -> dict[str, Any]:
    """Return the configuration of `deepspeed.initialize`. `weights`: their dtype.

    bfloat16 weights have fp32 master weights. Gradients are always accumulated in fp32.
    """
    low: dict[str, Any] = {
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
    }
    zero: dict[str, Any] = {
        "stage": section.zero,
        "reduce_bucket_size": section.bucket,
        "allgather_bucket_size": section.bucket,
    }
    if section.zero == 3:
        zero |= {"stage3_param_persistence_threshold": KEPT_WHOLE, "memory_efficient_linear": False}
    if section.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if section.offload == "all":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,  # our boundary is explicit; nothing is divided by this
        "gradient_clipping": max_grad_norm if section.zero else 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
        **(low if weights == "bfloat16" else {}),
    }


def shard(
    library: Any, net: nn.Module, configuration: Mapping[str, Any], ranks: Ranks, device: str
) -> None:
    """Shard the weights of a net over the ranks, one weight after the other, for ZeRO 3.

    Rank 0 has the weights in host memory; the others have the modules of `load_structure`. Every
    rank gets whole buffers, on `device`.
    """
    modules: list[Any] = list(net.modules())
    with torch.no_grad():
        for module in modules:
            if hasattr(module, "spares"):  # found by rank 0, which has the weights
                module.spares = bool(ranks.broadcast_tensor(torch.tensor(int(module.spares))))
            for name, buffer in module._buffers.items():  # noqa: SLF001 - as Module._apply does
                if buffer is not None:
                    module._buffers[name] = ranks.broadcast_tensor(buffer).to(device)  # noqa: SLF001
    library.zero.Init(
        module=_InTurn(net), config_dict_or_path=dict(configuration), dtype=torch.float32
    )


class _InTurn(nn.Module):
    """Yields the parameters of a net and allocates the memory of each only then."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self._nets = (net,)  # in a tuple: no module of this one

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        for parameter in self._nets[0].parameters(recurse):
            parameter.data = parameter.data.contiguous()
            yield parameter


class Shards:
    """Access to the weights and moments of an engine. All ranks make the same calls in order."""

    def __init__(self, library: Any, engine: Any, stage: int) -> None:
        self._library = library
        self._engine = engine
        self._stage = stage
        self._base: torch.optim.Optimizer = engine.basic_optimizer

    @contextmanager
    def whole(self, parameter: nn.Parameter, *, write: bool = False) -> Iterator[Tensor]:
        """Yield a gathered weight. write: rank 0's changes are sent to all ranks."""
        changed = 0 if write else None
        with self._library.zero.GatheredParameters(
            [parameter], modifier_rank=changed, enabled=self._stage == 3
        ):
            yield parameter

    def master(self, parameter: nn.Parameter) -> Tensor:
        """Return the whole fp32 weight on the host."""
        if self._stage == 3 and parameter.dtype != torch.float32:
            weight: Tensor = self._utils().safe_get_full_fp32_param(parameter)
            return weight.cpu().clone()
        with self.whole(parameter) as gathered:
            return gathered.detach().cpu().clone()

    def set_weight(self, parameter: nn.Parameter, value: Tensor) -> None:
        """Set a weight, and its master if that is another tensor."""
        with torch.no_grad(), self.whole(parameter, write=True) as gathered:
            gathered.copy_(value)
        if self._stage in (1, 2):
            self._utils().safe_set_full_fp32_param(parameter, value.to(parameter.device))
        elif self._stage == 3:
            self._utils().safe_set_local_fp32_param(parameter, _part(parameter, value))

    def link(self) -> None:
        """Link moments to parameters, before reading or setting them with ZeRO 1 and 2.

        DeepSpeed does this after the first group's first step, when other groups have no moments.
        """
        if self._stage in (1, 2) and self._base.state:
            self._engine.optimizer._hp_optimizer_states_linked = False  # noqa: SLF001
            self._engine.optimizer._lazy_init_hp_params_optimizer_state()  # noqa: SLF001

    def moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return gathered moments by name on the host; empty before the first step."""
        if self._stage == 0:
            own = self._base.state.get(parameter, {})
            return {key: torch.as_tensor(value).cpu().clone() for key, value in own.items()}
        moments = {}
        for key, value in sorted(next(iter(self._base.state.values()), {}).items()):
            if key == STEP:
                moments[key] = torch.as_tensor(float(value))
            else:
                gathered = self._utils().safe_get_full_optimizer_state(parameter, key)
                moments[key] = gathered.cpu().clone()
        return moments

    def make_room(self, keys: set[str]) -> None:
        """Create zero moments of these names."""
        self._base.state.clear()
        if self._stage and keys:
            for flat in self._flats():
                self._base.state[flat] = {
                    key: self._step(0.0) if key == STEP else torch.zeros_like(flat) for key in keys
                }
        self.link()

    def set_moment(self, parameter: nn.Parameter, key: str, value: Tensor) -> None:
        if self._stage == 0:
            device = "cpu" if key == STEP and not self._is_fused() else parameter.device
            self._base.state[parameter][key] = value.to(device, copy=True)
        elif key == STEP:
            for flat in self._flats():
                self._base.state[flat][STEP] = self._step(float(value))
        elif self._stage == 3:
            part = _part(parameter, value)
            self._utils().safe_set_local_optimizer_state(parameter, part, key)
        else:
            device = parameter.device
            self._utils().safe_set_full_optimizer_state(parameter, value.to(device), key)

    def _flats(self) -> list[Tensor]:
        """Return the flat pieces of this rank's optimizer."""
        optimizer = self._engine.optimizer
        flats: list[Tensor] = (
            optimizer.fp32_partitioned_groups_flat
            if self._stage == 3
            else optimizer.single_partition_of_fp32_groups
        )
        return flats

    def _step(self, count: float) -> Any:
        """Return the step count in the optimizer's type: torch has a tensor, DeepSpeed a number."""
        if isinstance(self._base, torch.optim.AdamW):
            return torch.tensor(count, device=self._flats()[0].device)
        return int(count)

    def _is_fused(self) -> bool:
        return any(group.get("fused") for group in self._base.param_groups)

    def _utils(self) -> Any:
        return self._library.utils


def _part(parameter: Any, value: Tensor) -> Tensor:
    """Return this rank's ZeRO-3 shard of a value, padded with zeros."""
    size = parameter.ds_tensor.ds_numel
    rank = torch.distributed.get_rank()
    padded = torch.zeros(size, dtype=value.dtype)
    own = value.detach().flatten()[rank * size : (rank + 1) * size]
    padded[: own.numel()] = own
    return padded
