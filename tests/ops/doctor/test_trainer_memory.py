"""What teachers add to the memory of the trainer."""

import json
from pathlib import Path

from small_model import PARAMETERS, small_model

from agentrl.core import config_loading
from agentrl.ops.configuration.model_spec import read_spec
from agentrl.ops.doctor.deepspeed_memory import over_ranks
from agentrl.ops.doctor.memory_items import HOST
from agentrl.ops.doctor.trainer_memory import trainer_items

TINY = Path(__file__).parents[3] / "models" / "tiny"
TAUGHT = """
model.path = "{model}"
model.dtype = "bfloat16"
model.device = "cuda"
tasks.dbbench = {{}}
trainer.engine = "deepspeed"
trainer.ranks = 2
trainer.deepspeed.zero = 3
[[teacher]]
name = "stored"
checkpoint = "other@3"
[[teacher]]
name = "tiny"
checkpoint = "{tiny}"
[[teacher]]
name = "adapter"
checkpoint = "{adapter}"
[[teacher]]
name = "external"
checkpoint = "external(x)"
"""


def test_local_teachers_are_held_by_the_first_rank_in_the_models_dtype(tmp_path: Path) -> None:
    model, adapter = small_model(tmp_path), tmp_path / "adapter"
    adapter.mkdir()
    base = json.dumps({"base_model_name_or_path": str(TINY)})
    (adapter / "adapter_config.json").write_text(base)
    config = config_loading.loads(TAUGHT.format(model=model, tiny=TINY, adapter=adapter))
    tiny = 2 * read_spec(TINY).parameters
    parts = list(trainer_items(config, read_spec(model)))
    found = {part.what: part.size for part in parts if part.what.startswith("teacher")}
    assert found == {
        "teacher stored": 2 * PARAMETERS,
        "teacher tiny": tiny,
        "teacher adapter": tiny,
    }
    placed = [part for part in over_ranks(config, parts) if part.what in found]
    assert {(part.process, part.device) for part in placed} == {("trainer rank 0", "cuda:0")}
    assert sum(part.size for part in placed) == sum(found.values())
    assert not any(part.device == HOST for part in placed)
