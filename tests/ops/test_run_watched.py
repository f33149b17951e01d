"""A run that is watched: every metric of the example dashboard has a value somewhere."""

import json
from pathlib import Path

import pytest
from running import ROOT, agentrl, eventually
from scraping import asked, dashboard, free_port, named, scraped, with_values

pytestmark = pytest.mark.slow

ELSEWHERE = {  # of an external model, or of what went wrong
    *("agentrl_alarms", "agentrl_redraws_total", "agentrl_reissues_total"),
    *("agentrl_restarts_total", "agentrl_upstream_tries_total"),
}


def environment(home: Path, base: int, **more: str) -> dict[str, str]:
    return {
        "AGENTRL__RUN__HOME": str(home),
        "AGENTRL__RUN__NAME": "watched",
        "AGENTRL__MODEL__PATH": str(ROOT / "models" / "tiny"),
        "AGENTRL__DISPATCH__GROUPS_PER_UPDATE": "3",
        "AGENTRL__DISPATCH__GROUP_SIZE": "4",
        "AGENTRL__ENVS__URL": f"http://127.0.0.1:{base}",
        "AGENTRL__METRICS__PORT": str(base + 1),
        "AGENTRL__METRICS__LOOK_S": "0.5",
    } | more


def test_a_run_exports_what_the_example_dashboard_asks_for(tmp_path: Path) -> None:
    home, log, base = tmp_path / "home", tmp_path / "log", free_port(10)
    config = str(ROOT / "configs" / "quickstart.toml")

    def ports() -> list[int]:
        try:
            told = json.loads((home / "processes.json").read_text())["processes"]
        except (OSError, ValueError):
            return []
        return [base + 1, *(row["metrics"] for row in told.values())]

    def text() -> str:
        try:
            return "\n".join(scraped(port) for port in ports())
        except OSError:
            return ""

    def logs() -> str:
        tails = [path.read_text()[-800:] for path in sorted((home / "logs").glob("*.log"))]
        return "\n".join([log.read_text(), *tails])

    wanted = named(dashboard()) - ELSEWHERE
    with agentrl("up", config, environment=environment(home, base), output=log) as process:
        eventually(
            lambda: wanted <= with_values(text()),
            within_s=150,
            text=lambda: f"never exported: {wanted - with_values(text())}\n{logs()}",
        )
        assert len(set(ports())) == 7
        process.terminate()
        assert process.wait(20) == 0
    with pytest.raises(ConnectionRefusedError):
        asked(base + 1)
