import hashlib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from agentrl.trainer.model.files.tensor_file import TYPES, write_sharded, write_tensors


def _every_type() -> dict[str, Tensor]:
    """Also what is no matrix, what is empty and what does not lie end to end in memory."""
    torch.manual_seed(0)
    found = {str(kind): (torch.randn(3, 5) * 50).to(kind) for kind in TYPES}
    turned = torch.arange(12.0).reshape(3, 4).t()
    return found | {"one": torch.tensor(7), "none": torch.zeros(0, 4), "turned": turned}


def test_what_is_written_is_read_by_safetensors_and_has_the_hash_that_is_told(
    tmp_path: Path,
) -> None:
    path, tensors = tmp_path / "t.safetensors", _every_type()
    digest = write_tensors(path, tensors)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    found = load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name
    with safe_open(path, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_a_disk_without_room_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_tensors(Path("/dev/full"), {"weight": torch.zeros(2**20)})


def test_a_model_beyond_one_file_has_an_index_that_names_each_weight_s_file(
    tmp_path: Path,
) -> None:
    tensors = {f"layer{n}": torch.full((256,), float(n)) for n in range(3)}
    digests = write_sharded(tmp_path, tensors, "2KB")
    assert {*digests, "model.safetensors.index.json"} == {p.name for p in tmp_path.iterdir()}
    assert len(digests) == 3
    for name, digest in digests.items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
    joined = {k: v for name in digests for k, v in load_file(tmp_path / name).items()}
    assert all(torch.equal(joined[name], tensor) for name, tensor in tensors.items())
