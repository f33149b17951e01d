"""The docs as a site (`make docs`)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _built(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """As the Makefile does it, of a folder of pages."""
    config = (ROOT / "mkdocs.yml").read_text().replace("docs_dir: docs", f"docs_dir: {docs}")
    (site.parent / "mkdocs.yml").write_text(config)
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)],
        cwd=site.parent,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_site_is_built_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    built = _built(ROOT / "docs", tmp_path / "site")
    assert built.returncode == 0, built.stderr
    pages = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    for page in pages:
        place = "index.html" if page == "index" else f"{page}/index.html"
        assert (tmp_path / "site" / place).is_file(), page
    assert "cost-per-success" in (tmp_path / "site" / "sql" / "index.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("link", ["[gone](gone.md)", "[gone](index.md#gone)"])
def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path, link: str) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(f"# Here\n\n{link}\n")
    built = _built(docs, tmp_path / "site")
    assert built.returncode != 0
    assert "gone" in built.stderr
