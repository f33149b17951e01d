"""A URL of another database is refused, and no error of a store shows its password."""

import re
from collections.abc import Callable

import pytest

from agentrl.core.errors import StoreError
from agentrl.db.admin.readonly import open_readonly
from agentrl.db.store import Store, open_store

PASSWORDS_AND_ADDRESSES = (  # with "qzq" and "jkj" in each password
    "qzq@jkj-1@127.0.0.1:1/x",
    "qzq@jkj/1@127.0.0.1:1/x",
    "qzq@jkj:wo/rd@127.0.0.1:1/x",
    "qzq@jkj:word@127.0.0.1:1/x",
    "qzq/jkj-1@127.0.0.1:1/x",
    "qzq:jkj#1@127.0.0.1:1/x",
    "qzq[jkj]1@127.0.0.1:1/x",
    "qzq?jkj=1@127.0.0.1:1/x",
    "qzq%40%2Fjkj@127.0.0.1:1/x",
)


@pytest.mark.parametrize("rest", PASSWORDS_AND_ADDRESSES)
@pytest.mark.parametrize("open_it", [open_store, open_readonly])
def test_no_part_of_a_password_reaches_an_error(open_it: Callable[[str], Store], rest: str) -> None:
    with pytest.raises(StoreError) as refused:
        open_it(f"postgresql+psycopg://agentrl:{rest}")
    said = f"{refused.value} {refused.value.hint}"
    assert not re.search("qzq|jkj", said)


def test_a_password_in_the_query_of_a_url_is_not_shown() -> None:
    with pytest.raises(StoreError) as refused:
        open_store("postgresql+psycopg://127.0.0.1:1/x?user=u&password=hunter2")
    assert "hunter2" not in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize(
    "driver", ["postgres", "postgresql", "postgresql+asyncpg", "mysql", "sqlite+foo"]
)
@pytest.mark.parametrize("open_it", [open_store, open_readonly])
def test_a_database_that_cannot_be_used_is_refused(
    open_it: Callable[[str], Store], driver: str
) -> None:
    with pytest.raises(StoreError) as refused:
        open_it(f"{driver}://u:hunter2@h/d")
    assert str(refused.value) == f"store.url: {driver}:// is not supported"
    assert "postgresql+psycopg://USER@HOST/DATABASE" in refused.value.hint
    assert "hunter2" not in refused.value.hint
