"""Configurations of runs that an external model takes part in."""

from pathlib import Path

from openai_endpoint import KEY
from running import ROOT

POLICIES = """
[[policy]]
name = "policy"
[[policy]]
name = "{policy}"
engine = "external"
[policy.external]
url = "{url}"
model = "big"
{external}
"""
TEACHER = """
[[teacher]]
name = "elder"
checkpoint = "external(critic)"
tasks = ["dbbench"]
"""
RUN = """
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
"""


def write_external_run(folder: Path, name: str, policy: str, url: str, **sections: str) -> Path:
    """Write the run's file. `policy`: the external one; `sections`: their further lines."""
    given = dict.fromkeys(("dispatch", "worker", "sampling", "external"), "") | sections
    path, tiny = folder / "run.toml", ROOT / "models" / "tiny"
    given["external"] = f'key_env = "BIG_KEY"\n{given["external"]}'  # it may begin a table
    text = RUN + POLICIES
    path.write_text(
        text.format(name=name, home=folder / "home", tiny=tiny, policy=policy, url=url, **given)
    )
    return path


def external_teacher(url: str, external: str = "") -> str:
    """Return the sections of a policy that acts, and of one that teaches dbbench."""
    return POLICIES.format(policy="critic", url=url, external=external) + TEACHER


def assert_key_is_kept_nowhere(folder: Path) -> None:
    for path in folder.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path
