"""Runs inside vLLM's workers: loads weights and reports digests of the bytes it read.

    file ─▶ tensor ─▶ digest, kept ─▶ vLLM's own reload ─▶ digests of all tensors, as the answer
    an adapter's file ─▶ tensor ─▶ digest ─▶ the same answer; then vLLM reads the file itself

It imports none of our modules, and vLLM's modules only while vLLM calls it.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 8192  # words of 8 bytes
HEAD, EMBEDDING = "ParallelLMHead", "VocabParallelEmbedding"


class Weights:
    """Extension of vLLM's worker class (`--worker-extension-cls`)."""

    model_runner: Any
    vllm_config: Any
    device: Any
    reload_weights: Any

    def exchange_weights(self, weights_path: str) -> dict[str, str]:
        """Replace the weights by the directory's tensors; return digests by name.

        After an error the weights are undefined until another exchange has succeeded.
        """
        digests: dict[str, str] = {}
        try:
            self.reload_weights(weights_iterator=_tensors(Path(weights_path), digests))
        except Exception:
            self._end_reload()
            raise
        if self.device.type == "cpu":
            self._refresh_head()
        return digests

    def digest_adapter(self, weights_path: str) -> dict[str, str]:
        """Read an adapter's tensors from the file, like vLLM's loader; return digests by name."""
        digests: dict[str, str] = {}
        for _ in _tensors(Path(weights_path), digests):
            pass
        return digests

    def _end_reload(self) -> None:
        """Close a reload that failed half-way, so that the next one begins anew.

        vLLM leaves it open: the next one counts its tensors on top of those of the failed one, and
        fails too if that one ended within a fused layer.
        """
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(self.model_runner.get_model(), self.vllm_config.model_config)

    def _refresh_head(self) -> None:
        """Pack the head again from its new weights.

        On a CPU vLLM packs the weights of linear layers after loading, including the head. A head
        that is tied to the embedding has no tensor in a checkpoint, so a reload does not pack it
        again.
        """
        model = self.model_runner.get_model()
        named = [(type(module).__name__, module) for module in model.modules()]
        embeddings = [module for name, module in named if name == EMBEDDING]
        for name, head in named:
            if name != HEAD:
                continue
            if getattr(model.config, "tie_word_embeddings", False) and embeddings:
                head.weight = embeddings[0].weight
            head.quant_method.process_weights_after_loading(head)


def weight_files(path: Path) -> list[Path]:
    """Return the safetensors files of a model's directory, from its index if it has one."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        named = json.loads(index.read_bytes())["weight_map"].values()
        return [path / name for name in sorted(set(named))]
    return sorted(path.glob("*.safetensors"))


def digest(content: NDArray[np.uint8]) -> str:
    """Compute SHA-256 over the word-wise sums of a tensor's blocks and the remaining bytes.

    It detects loading errors: a changed, missing or added byte, a wrong or truncated file. It does
    not detect attacks or changes that cancel in a sum, such as swapped 64 KiB blocks. It runs at
    memory speed; SHA-256 of every byte takes ten times as long.
    """
    words = content[: len(content) // 8 * 8].view(np.int64)
    whole = len(words) // BLOCK * BLOCK
    sums = words[:whole].reshape(-1, BLOCK).sum(axis=0, dtype=np.int64)
    return hashlib.sha256(
        sums.tobytes() + content[whole * 8 :].tobytes() + str(len(content)).encode()
    ).hexdigest()


def _tensors(path: Path, digests: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield every tensor of a directory; its digest is in `digests` before."""
    import torch
    from safetensors import safe_open

    for file in weight_files(path):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no dictionary
                tensor = opened.get_tensor(name)
                digests[name] = digest(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
                yield name, tensor
