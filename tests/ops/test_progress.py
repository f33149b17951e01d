from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from itertools import count

from rich.console import Console

from agentrl.ops.progress import EpisodeProgress


def test_without_a_terminal_a_line_now_and_then_says_how_many_episodes_have_ended() -> None:
    output, seconds = StringIO(), count(step=4)
    console = Console(file=output)
    with EpisodeProgress(5, console=console, clock=lambda: next(seconds)) as progress:
        progress.skip(1)
        for _ in range(3):
            progress.advance(1, "run@8")
        progress.advance(0, "run@8 waits for the store")
        progress.advance(1)
    assert output.getvalue().splitlines() == [
        "run@8: 1 of 4 episodes",
        "4 of 4 episodes",
    ]
    assert progress.done == 4


def test_a_terminal_shows_a_bar_instead_of_lines() -> None:
    output = StringIO()
    console = Console(file=output, force_terminal=True, width=80)
    with EpisodeProgress(2, console=console) as progress, ThreadPoolExecutor(2) as threads:
        list(threads.map(progress.advance, [1, 1]))
    assert "100%" in output.getvalue()
    assert "of 2 episodes" not in output.getvalue()


def test_nothing_is_shown_where_nobody_wants_it() -> None:
    output = StringIO()
    with EpisodeProgress(2, quiet=True, console=Console(file=output)) as progress:
        progress.advance(2)
    assert output.getvalue() == ""
