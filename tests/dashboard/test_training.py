import pytest

from agentrl.dashboard import charts
from agentrl.dashboard.figure_labels import ALARM_FIGURES, KNOWN, figure_of
from agentrl.dashboard.viewmodels.training import (
    WHOLE,
    Training,
    alarm_rows,
    curve,
    figure_rows,
    markers,
    sections,
    smooth_values,
    values_of,
)
from agentrl.db.queries.update_figures import UpdateFigures
from agentrl.db.transitions.alarms import AlarmPeriod

FALL = AlarmPeriod("db", "entropy_fall", 0.6, 0.5, 2, ended_version=3, seconds=90.0)
JUMP = AlarmPeriod("", "grad_norm", 12.0, 10.0, 3)
TRAINING = Training(
    versions=(1, 2, 3),
    values=(
        {"loss": 0.5, "entropy": 1.0, "db/entropy": 2.0, "my_figure": 7.0},
        {"loss": 0.25, "entropy": 0.5, "db/entropy": 1.0, "os/entropy": 0.5},
        {"loss": 0.0, "entropy": 0.25},
    ),
    alarms=(FALL, JUMP),
)


def test_a_moving_average_is_not_drawn_to_its_first_value() -> None:
    assert smooth_values([4.0, 8.0, 2.0], 0.0) == [4.0, 8.0, 2.0]
    # (8 + 4/2) / (1 + 1/2); (2 + 8/2 + 4/4) / (1 + 1/2 + 1/4)
    assert smooth_values([4.0, 8.0, 2.0], 0.5) == pytest.approx([4.0, 10 / 1.5, 7 / 1.75])
    assert smooth_values([0.0005] * 9, 0.6) == [0.0005] * 9


def test_a_figure_has_a_line_for_each_task_that_has_it() -> None:
    rows = [(r["task"], r["version"], r["value"]) for r in curve(TRAINING, "entropy", 0.5)]
    assert rows == [("db", 1, 2.0), ("db", 2, 1.0), ("os", 2, 0.5)]


def test_a_figure_of_the_whole_update_has_one_line() -> None:
    rows = curve(TRAINING, "loss", 0.5)
    assert [(row["task"], row["value"]) for row in rows] == [
        (WHOLE, 0.5),
        (WHOLE, 0.25),
        (WHOLE, 0.0),
    ]
    assert [row["smooth"] for row in rows] == pytest.approx([0.5, 0.5 / 1.5, 0.25 / 1.75])


def test_speed_is_of_the_time_since_the_update_before() -> None:
    update = UpdateFigures(4, "committed", 40.0, 2.0, 8.0, 3, 24, 160, {"loss": 1, "note": "x"})
    assert values_of(update) == {
        "loss": 1.0,
        "trained_tokens": 160.0,
        "trained_episodes": 24.0,
        "trained_groups": 3.0,
        "trained_tokens_per_s": 20.0,
        "trained_episodes_per_s": 3.0,
        "since_s": 8.0,
        "update_s": 2.0,
    }


def test_every_figure_of_a_run_is_in_one_section_and_an_unknown_one_keeps_its_name() -> None:
    found = sections(TRAINING)
    shown = {section: [figure.name for figure in figures] for section, figures in found.items()}
    assert shown == {"Learning": ["loss", "entropy"], "Other": ["my_figure"]}
    assert figure_of("my_figure").title == "my figure"


def test_an_alarm_is_marked_on_the_chart_of_its_figure() -> None:
    assert [(row["version"], row["alarm"]) for row in markers(TRAINING.alarms, "entropy")] == [
        (2, "entropy_fall of db")
    ]
    assert [row["alarm"] for row in markers(TRAINING.alarms, "grad_norm")] == ["grad_norm"]
    assert markers(TRAINING.alarms, "loss") == []
    assert set(ALARM_FIGURES.values()) <= set(KNOWN)


def test_the_chart_has_the_values_the_smoothed_values_and_the_alarms() -> None:
    marks = markers(TRAINING.alarms, "entropy")
    rows = curve(TRAINING, "entropy", 0.5)
    spec = charts.curve(rows, marks, {"db": "#0072B2"}, figure_of("entropy"))
    rule, thin, thick = spec["layer"]
    assert rule["data"]["values"] == marks
    assert (thin["encoding"]["y"]["field"], thick["encoding"]["y"]["field"]) == ("value", "smooth")
    scale = thick["encoding"]["color"]["scale"]
    assert scale["domain"] == ["db", "os"]
    assert scale["range"][0] == "#0072B2"


def test_the_history_of_alarms_says_when_each_was_raised_and_ended() -> None:
    newest, oldest = alarm_rows(TRAINING.alarms)
    assert (newest["alarm"], newest["task"], newest["ended at version"]) == (
        "grad_norm",
        "all",
        None,
    )
    assert (oldest["raised at version"], oldest["ended at version"], oldest["minutes"]) == (
        2,
        3,
        1.5,
    )
    assert oldest["figure"] == figure_of("entropy").title


def test_the_table_has_every_figure_of_an_update_newest_first() -> None:
    rows = figure_rows(TRAINING)
    assert [row["version"] for row in rows] == [3, 2, 1]
    assert list(rows[2].items()) == [
        ("version", 1),
        ("entropy", 1.0),
        ("loss", 0.5),
        ("my_figure", 7.0),
        ("db/entropy", 2.0),
    ]
