"""Tracks, with cases worked out by hand."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.core.errors import ConfigError
from agentrl.db.registry.tracks import Track, needed_checkpoints, parse_track, select_checkpoint

LIVE = [(version, f"c{version}") for version in (3, 0, 7, 6, 4, 10)]


@pytest.mark.parametrize(
    ("track", "checkpoint_id"),
    [
        ("current", "c10"),
        ("lagged(1)", "c7"),
        ("lagged(3)", "c7"),
        ("lagged(4)", "c6"),
        ("lagged(5)", "c4"),
        ("lagged(10)", "c0"),
        ("lagged(11)", "c0"),
        ("refreshed(1)", "c10"),
        ("refreshed(2)", "c10"),
        ("refreshed(3)", "c6"),
        ("refreshed(4)", "c4"),
        ("refreshed(25)", "c0"),
        ("pinned(c6)", "c6"),
        ("pinned(elsewhere)", "elsewhere"),
    ],
)
def test_a_track_follows_the_live_lineage(track: str, checkpoint_id: str) -> None:
    assert select_checkpoint(track, LIVE) == checkpoint_id


@pytest.mark.parametrize(
    ("tracks", "versions"),
    [
        (["current"], {5, 6}),
        (["lagged(2)"], {3, 4, 5, 6}),
        (["refreshed(3)"], {3, 5, 6}),
        (["refreshed(4)", "lagged(1)"], {4, 5, 6}),
        (["pinned(c1)"], {1, 5, 6}),
    ],
)
def test_what_tracks_need_again_from_the_snapshot_is_needed(
    tracks: list[str], versions: set[int]
) -> None:
    live = [(version, f"c{version}") for version in range(7)]
    assert needed_checkpoints(tracks, live, 5) == {f"c{version}" for version in versions}


def test_where_no_version_fits_the_oldest_is_served() -> None:
    live = [(11, "eleven"), (13, "thirteen")]
    assert select_checkpoint("lagged(5)", live) == "eleven"
    assert select_checkpoint("refreshed(5)", live) == "eleven"


def test_an_empty_lineage_serves_only_what_is_pinned() -> None:
    assert select_checkpoint("pinned(x)", []) == "x"
    with pytest.raises(ConfigError, match="no live checkpoint"):
        select_checkpoint("current", [])


@pytest.mark.parametrize(
    "track",
    ["", "Current", "lagged", "lagged()", "lagged(0)", "lagged(-1)", "lagged(1.5)", "lagged(٣)",
     "refreshed(0)", "pinned()", "pinned(a b)", "current ", "lagged(1) ", "newest"],
)  # fmt: skip
def test_nonsense_is_refused(track: str) -> None:
    with pytest.raises(ConfigError, match="track"):
        parse_track(track)


def test_tracks_parse_to_their_parts() -> None:
    assert parse_track("current") == Track("current")
    assert parse_track("lagged(4)") == Track("lagged", 4)
    assert parse_track("refreshed(25)") == Track("refreshed", 25)
    assert parse_track("pinned(ab-1.2_3)") == Track("pinned", checkpoint_id="ab-1.2_3")


@given(st.sets(st.integers(0, 500), min_size=1), st.integers(1, 40))
def test_what_is_served_is_live_and_never_fresher_than_asked(versions: set[int], k: int) -> None:
    live = [(version, str(version)) for version in versions]
    served = int(select_checkpoint(f"lagged({k})", live))
    assert served in versions
    assert served <= max(versions) - k or served == min(versions)
    assert int(select_checkpoint("current", live)) == max(versions)


@given(st.text(max_size=30))
def test_any_text_parses_or_is_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_track(text).kind in {"current", "lagged", "refreshed", "pinned"}
