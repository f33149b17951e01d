"""Names every exchange and queue, and bounds what queues keep; no other module does.

agentrl.trajectories ─(run_id)─▶ recorder.trajectories.<run>   ─▶ recorder
                             └─▶ trainer.trajectories.<run>    ─▶ trainer
agentrl.events       ─(run_id)─▶ one exclusive queue per subscriber
Celery's own         ─────────▶ worker.episodes.<run>          ─▶ workers
<queue> ─(refused)─▶ agentrl.dead ─▶ <queue>.dead
"""

TRAJECTORIES = "agentrl.trajectories"
EVENTS = "agentrl.events"
DEAD = "agentrl.dead"
EXCHANGES = (TRAJECTORIES, EVENTS, DEAD)

MAX_EVENTS = 1_000  # kept for each subscriber; the oldest give way
MAX_DEAD_LETTERS = 1_000  # of one queue; the oldest give way
MAX_DEAD_BYTES = 2**30


def recorder_queue(run_id: str) -> str:
    return f"recorder.trajectories.{run_id}"


def trainer_queue(run_id: str) -> str:
    return f"trainer.trajectories.{run_id}"


def episodes_queue(run_id: str) -> str:
    """Return the name of Celery's queue of RunEpisode commands."""
    return f"worker.episodes.{run_id}"


def dead_queue(queue: str) -> str:
    return f"{queue}.dead"


def run_queues(run_id: str) -> tuple[str, ...]:
    """Return the names of the durable queues for trajectories of a run."""
    return (recorder_queue(run_id), trainer_queue(run_id))
