"""Which deaths count, and when there have been too many."""

import pytest

from agentrl.ops.supervisor.restarts import Deaths, Pace

PACE = Pace(back_off_s=(1.0, 2.0, 5.0), steady_s=15.0, give_up_s=600.0)


def died(*lives: tuple[float, int | None]) -> tuple[Deaths, list[bool]]:
    """Deaths after so many seconds of life each, with how far the run was; which were hopeless."""
    deaths, now, hopeless = Deaths(), 0.0, []
    for lived_s, reached in lives:
        now += lived_s
        deaths.add(PACE, now, lived_s, reached)
        hopeless.append(deaths.are_hopeless(PACE, now))
    return deaths, hopeless


def test_one_that_never_stands_is_given_up_at_the_fourth_death() -> None:
    _, hopeless = died(*[(0.1, reached) for reached in range(4)])
    assert hopeless == [False, False, False, True], "the run may go on without it: that is others"


def test_one_that_stands_and_makes_no_progress_is_given_up_after_ten_minutes() -> None:
    deaths, hopeless = died(*[(20.0, 5)] * 40)
    assert hopeless.index(True) == 31  # the first death is at 20 s, the 32nd at 640 s
    assert deaths.count == 40


def test_one_that_is_slow_to_die_has_several_tries() -> None:
    _, hopeless = died(*[(550.0, 5)] * 5)
    assert hopeless == [False, False, False, True, True]


@pytest.mark.parametrize("reached", [[1, 2, 3, 4, 5, 6], [5, 6, None, 6, 6, 7]])
def test_progress_and_a_store_that_is_away_begin_the_count_anew(reached: list[int | None]) -> None:
    _, hopeless = died(*[(300.0, each) for each in reached])
    assert not any(hopeless)


def test_a_version_that_is_reached_again_after_a_roll_back_is_no_progress() -> None:
    deaths, _ = died((100.0, 9), (100.0, 5), (100.0, 9))
    assert deaths.count == 3


def test_who_lived_for_long_has_died_once() -> None:
    deaths, _ = died((20.0, 0), (20.0, 0), (700.0, 0))
    assert deaths.count == 1


def test_pauses_grow_to_the_longest() -> None:
    pauses = [died(*[(0.1, 0)] * count)[0].pause_s(PACE, 0.0) for count in (1, 2, 3, 4, 9)]
    assert pauses == [1.0, 2.0, 5.0, 5.0, 5.0]


def test_one_that_has_lived_waits_less_before_its_next_start() -> None:
    deaths, _ = died(*[(4.0, 0)] * 9)
    assert [deaths.pause_s(PACE, lived_s) for lived_s in (0.0, 3.0, 4.0, 20.0)] == [5, 2, 1, 1]
