"""Judges that prefer solutions with few turns, and turns that repeat no other."""


def judge(_item, episode):
    return 1.0 / episode.turns if episode.score >= 1.0 else 0.0


def new_turns(_item, episode):  # with scores = "turns"
    said = [message["content"] for message in episode.messages if message["turn"]]
    return [0.0 if text in said[:number] else 1.0 for number, text in enumerate(said)]
