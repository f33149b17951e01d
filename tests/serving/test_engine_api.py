"""What a request may ask of an engine: both sides of every bound."""

from typing import Any

import pytest

from agentrl.serving.engine_api import (
    COLDEST,
    HOTTEST,
    ModelLimits,
    Request,
    RequestError,
    check_request,
)

LIMITS = ModelLimits(vocabulary=10, context=8)


def request(**changes: Any) -> Request:
    return Request(**{"policy": "p", "prompt": [1, 2], "max_tokens": 3} | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": [0, 9]},
        {"prompt": [1] * 5},
        {"prompt": [1], "max_tokens": 7},
        {"max_tokens": 1},
        {"temperature": 0.0},
        {"temperature": COLDEST},
        {"temperature": HOTTEST},
    ],
)
def test_a_request_at_a_bound_fits(changes: dict[str, Any]) -> None:
    check_request(request(**changes), LIMITS)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10]}, "prompt"),
        ({"prompt": [1] * 6}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": COLDEST * 0.99}, "temperature"),
        ({"temperature": HOTTEST * 1.01}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_a_request_beyond_a_bound_is_refused_by_its_field(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(RequestError) as caught:
        check_request(request(**changes), LIMITS)
    assert caught.value.field == field
