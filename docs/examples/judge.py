"""A judge that prefers solutions with few turns."""


def judge(_item, episode):
    return 1.0 / episode.turns if episode.score >= 1.0 else 0.0
