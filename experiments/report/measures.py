"""What several studies measure of a training. Pure functions of its results."""

from statistics import fmean

from agentrl.experiments.findings import Training
from agentrl.experiments.report.comparison import MEAN, mean_or_task
from agentrl.experiments.simulation.statistics import pass_curve
from agentrl.experiments.staleness.findings import Course

FINAL, WAY, UPDATES = "final", "on the way", "updates"


def final(training: Training | Course, task: str) -> float | None:
    """Return the success of the trained policy in all attempts at all held-out items."""
    for skill in training.skills:
        if skill.task == task:
            return fmean(skill.solved) / training.design.attempts
    return None


def on_the_way(training: Training, task: str) -> float | None:
    """Average the checks after the first, which is before any update."""
    known = [check.success[task] for check in training.checks[1:] if task in check.success]
    return fmean(known) if known else None


def pass_at_k(k: int, acting: str, training: Training, task: str) -> float | None:
    """Return pass@k of held-out items; None if not measured. `acting`: policy or mixture."""
    for skill in training.skills:
        if (skill.acting, skill.task) == (acting, task):
            return pass_curve(skill.solved, training.design.attempts).get(k)
    return None


def updates(training: Training, _: str) -> float | None:
    return training.points[-1].version if training.points else None


def success_at_check(check: int, training: Training | Course, task: str) -> float | None:
    """Return the success at one check during training."""
    return training.checks[check].success.get(task) if check < len(training.checks) else None


def success_by_tokens(task: str, training: Training) -> list[tuple[float, float]]:
    """Return a point of the learning curve for each check of the task."""
    return [
        (each.tokens, mean_or_task(each.success, task))
        for each in training.checks
        if task == MEAN or task in each.success
    ]
