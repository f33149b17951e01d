"""The docs as a site (`make docs`)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_site_is_built_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    for page in pages:
        place = "index.html" if page == "index" else f"{page}/index.html"
        assert (tmp_path / "site" / place).is_file(), page
    assert "cost-per-success" in (tmp_path / "site" / "sql" / "index.html").read_text()
