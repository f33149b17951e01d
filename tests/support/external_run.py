"""The configuration of a run that an external model takes part in."""

from pathlib import Path

from openai_endpoint import KEY
from running import ROOT

FILE = """
workers = 1
[run]
name = "{name}"
home = "{home}"
stop_updates = 2
[model]
path = "{tiny}"
[tasks.dbbench.options]
style = "compact"
items = 40
test_items = 8
[dispatch]
groups_per_update = 4
group_size = 4
{dispatch}
[worker]
concurrency = 8
{worker}
[sampling]
max_step_tokens = 40
max_tokens = 400
{sampling}
[[policy]]
name = "policy"
[[policy]]
name = "{policy}"
engine = "external"
[policy.external]
url = "{url}"
model = "big"
key_env = "BIG_KEY"
{external}
"""


def write_external_run(folder: Path, name: str, policy: str, url: str, **sections: str) -> Path:
    """Write the run's file. `policy`: the external one; `sections`: their further lines."""
    given = dict.fromkeys(("dispatch", "worker", "sampling", "external"), "") | sections
    path, tiny = folder / "run.toml", ROOT / "models" / "tiny"
    text = FILE.format(name=name, home=folder / "home", tiny=tiny, policy=policy, url=url, **given)
    path.write_text(text)
    return path


def assert_key_is_kept_nowhere(folder: Path) -> None:
    for path in folder.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path
