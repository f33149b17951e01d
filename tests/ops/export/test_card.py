from collections import Counter, defaultdict
from pathlib import Path

import pytest

from agentrl.ops.export.card import write_card
from agentrl.ops.export.episodes import ExportCounts


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({0, 3, 18}, "by policies of version 0 to 18. One"),
        ({3}, "by policies of version 3. One"),
        ({-1, 0, 18}, "by policies of version 0 to 18, and an external model. One"),
        ({-1}, "by an external model. One"),
        (set(), "with AgentRL. One"),
    ],
)
def test_the_card_says_which_policies_played(tmp_path: Path, versions: set[int], said: str) -> None:
    counts = ExportCounts("run", Counter({"kg": 2}), defaultdict(float, {"kg": 1.0}), versions)
    write_card(tmp_path / "README.md", counts)
    card = " ".join((tmp_path / "README.md").read_text().split())
    assert said in card
    assert "-1" not in card
