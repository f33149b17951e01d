from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.server.maintenance import Maintenance


def test_a_pool_that_fails_starves_no_other_and_is_tried_less_often() -> None:
    now, tried, tended = 0.0, list[float](), list[float]()
    failing = True

    def fail() -> None:
        tried.append(now)
        if failing:
            raise EnvironmentFailure(f"no image at {now:g}")

    tend = Maintenance([fail, lambda: tended.append(now)], lambda: now)
    errors = []
    for second in range(90):
        now, failing = float(second), second != 66
        try:
            tend()
        except EnvironmentFailure as error:
            errors.append(str(error))
    assert len(tended) == 90
    assert tried == [0, 1, 6, 36, 66, 67, 68, 73]
    assert errors[:3] == ["no image at 0", "no image at 1", "no image at 6"]
