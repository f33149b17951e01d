"""What the answer that the program printed is worth."""

import json


def reward(item, result):
    return float(json.loads(result.last_line) == item["answers"])
