"""Search against Lucene itself, in Anserini's jar that AGENTRL_LUCENE names (docs/tasks)."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from agentrl.envs.tasks.webshop import large_catalogue, lucene
from agentrl.envs.tasks.webshop.analysis import terms
from agentrl.envs.tasks.webshop.catalogue import MemoryCatalogue
from agentrl.envs.tasks.webshop.indexing import index_in_memory
from agentrl.envs.tasks.webshop.search import Search

pytestmark = pytest.mark.oracles


@pytest.fixture
def jar() -> Path:
    path = os.environ.get("AGENTRL_LUCENE")
    if not path or shutil.which("java") is None:
        pytest.skip("needs java and AGENTRL_LUCENE, the path of Anserini's fat jar")
    return Path(path)


def agree(jar: Path, documents: list[tuple[str, str]], queries: list[str]) -> None:
    ours = Search(index_in_memory(documents))
    for query, theirs in zip(queries, lucene.search(jar, documents, queries), strict=True):
        found = [(documents[place][0], np.float32(score)) for place, score in ours.best(query, 50)]
        assert found == [(name, np.float32(score)) for name, score in theirs], query


def test_every_score_of_the_sample_is_lucenes(jar: Path, sample_catalogue: MemoryCatalogue) -> None:
    documents = [(each.asin, each.text) for each in sample_catalogue.products]
    wishes = [each.template.text.lower() for each in sample_catalogue.products if each.template]
    titles = [" ".join(each.title.lower().split()) for each in sample_catalogue.products[:300]]
    agree(jar, documents, wishes + titles)


def test_every_score_of_a_made_up_catalogue_is_lucenes(jar: Path) -> None:
    agree(
        jar,
        [(each.asin, each.text) for each in large_catalogue.products(3000)],
        large_catalogue.queries(200),
    )


def test_every_character_is_a_part_of_the_same_word(jar: Path) -> None:
    """Those up to U+3000; above U+0700 some are younger than the Unicode that Lucene knows."""
    codes = [code for code in range(0x20, 0x3000) if code not in (0x85, 0x2028, 0x2029)]
    lines = [f"a{chr(code)}b 1{chr(code)}1 {chr(code)}{chr(code)}" for code in codes]
    theirs = lucene.tokens(jar, lines)
    differ = [
        code
        for code, *both in zip(codes, map(terms, lines), theirs, strict=True)
        if both[0] != both[1]
    ]
    assert len(differ) < 150
    assert min(differ) > 0x700
