"""Settle an attempt that has ended: publish its trajectory, or decide what its error costs.

    trajectory ─▶ publish, with a confirm ─▶ row: finished
    error ─▶ row: given back, or retried as a further attempt, or failed after the last

consumes  a trajectory, or the error that ended the attempt
produces  EpisodeFinished; then the row, by a compare-and-set on its fence
waits for a broker that is away, until the worker stops; for the database, as long as it takes
"""

import threading
from dataclasses import dataclass

from agentrl.broker.api import Publisher
from agentrl.broker.messages import EpisodeFinished
from agentrl.broker.queue_names import TRAJECTORIES
from agentrl.core.config.sections.episodes import Dispatch
from agentrl.core.errors import AgentRLError, StoreUnavailable, in_words, origin_of
from agentrl.core.logging import get_logger
from agentrl.core.retry import FOREVER
from agentrl.core.telemetry import metrics, tracing
from agentrl.core.trajectory import Trajectory
from agentrl.core.trajectory_body import decode_as_received
from agentrl.db.store import Store
from agentrl.db.transitions import episodes
from agentrl.db.transitions.episodes import ClaimedEpisode, EpisodeResult
from agentrl.workers.attempt_errors import EpisodeStopped, is_given_back, reason_of
from agentrl.workers.journal import ClaimLapsed
from agentrl.workers.waiting import WaitingAttempts

log = get_logger()


@dataclass(frozen=True, slots=True)
class Settlement:
    """Settles the attempts of a worker process. Both methods return the outcome as one word.

    `stop`: set when the worker stops. `waiting`: notes an attempt that waits for the broker.
    """

    store: Store
    publisher: Publisher
    dispatch: Dispatch
    stop: threading.Event
    waiting: WaitingAttempts

    def finish(self, claimed: ClaimedEpisode, trajectory: Trajectory) -> str:
        """Publish the body with a confirm, then update the row."""
        trajectory = decode_as_received(trajectory)
        with tracing.span("publish"):
            self._publish(claimed, trajectory)
        result = EpisodeResult(
            status=trajectory.status,
            reward=trajectory.reward,
            score=trajectory.score,
            turns=trajectory.turns,
            tokens=len(trajectory),
            loss_tokens=int(trajectory.mask().sum()),
            body_sha256=trajectory.sha256,
        )
        if not self._move_row(claimed, result):
            return self._lapsed(claimed)
        metrics.SAMPLED.labels(task=claimed.task).inc(result.loss_tokens)
        return result.status

    def _move_row(self, claimed: ClaimedEpisode, result: EpisodeResult) -> bool:
        """Move the row to finished; False if the claim has expired.

        Waits as long as the database is away: the body is published, so it need not be played
        again. A commit whose answer was lost is ours.
        """
        timeout_s = self.dispatch.body_timeout_s
        return self.store.transact(
            lambda session: episodes.finish(session, claimed, result, body_timeout_s=timeout_s),
            done=lambda session: episodes.is_finished_with(session, claimed, result.body_sha256),
            patience_s=FOREVER,
        )

    def _publish(self, claimed: ClaimedEpisode, trajectory: Trajectory) -> None:
        """Publish the body; wait as long as the broker is unavailable.

        The deadline of the attempt does not apply, because the episode is over. Raises
        EpisodeStopped, MessageRefused.
        """
        is_logged = False

        def wait_on(waited_s: float) -> None:
            nonlocal is_logged
            if self.stop.is_set():
                raise EpisodeStopped("the worker is stopping, its broker does not take the body")
            wait_for(None)
            if not is_logged:
                log.warning("Finished episode waits for the broker", waited_s=round(waited_s, 1))
            is_logged = True

        message = EpisodeFinished(trajectory=trajectory)
        with self.waiting.attempt(claimed) as wait_for:
            self.publisher.publish(TRAJECTORIES, trajectory.run_id, message, waiting=wait_on)

    def fail(self, claimed: ClaimedEpisode, error: Exception) -> str:
        """Give the episode back, or count a failed attempt."""
        if isinstance(error, StoreUnavailable):  # only once told to stop: else it waits
            log.warning("Attempt left until its lease expires", error=str(error))
            return "left"
        if isinstance(error, ClaimLapsed):
            return self._lapsed(claimed)
        if is_given_back(error, self.stop):
            self.store.transact(lambda session: episodes.release(session, claimed))
            write = log.info if isinstance(error, EpisodeStopped) else log.warning
            write("Episode given back", error=str(error))
            return "given_back"
        reason, status = reason_of(error)
        cause = {"reason": reason, "error": in_words(error)}
        if isinstance(error, AgentRLError):
            log.warning("Attempt failed", **cause)
        else:
            log.warning("Attempt failed", **cause, raised_at=origin_of(error), exc_info=True)
        limit = self.dispatch.max_attempts
        self.store.transact(
            lambda session: episodes.retry(
                session, claimed, reason, max_attempts=limit, detail=status
            )
        )
        return reason

    def _lapsed(self, claimed: ClaimedEpisode) -> str:
        """Log why the attempt's result does not count: its run is over, or another took over."""
        try:
            is_over = self.store.ask(
                lambda session: episodes.is_cancelled(session, claimed.episode_id)
            )
        except StoreUnavailable:  # told to stop
            log.warning("Attempt ended without its claim while the store is away")
            return "lapsed"
        if is_over:
            log.info("Attempt cancelled because its run is over")
        else:
            log.warning("Attempt lost its claim, so its result is discarded")
        return "lapsed"
