"""The state of an interrupted warm start: `.NAME.warmstart` beside the output directory."""

import shutil
from pathlib import Path

from agentrl.core.errors import ConfigError
from agentrl.ops.warmstart.cloning_trainer import PhaseRecord
from agentrl.trainer.snapshots import snapshots
from agentrl.trainer.snapshots.snapshots import State


class WarmstartState:
    """Stores the newest record. `fingerprint`: of all that determines the remaining steps."""

    def __init__(self, out: Path, fingerprint: str) -> None:
        self.folder = out.with_name(f".{out.name}.warmstart")
        self._fingerprint = fingerprint

    def load(self) -> PhaseRecord:
        """Load the newest complete record, or return an initial one.

        Raises ConfigError if it would go on otherwise than it began.
        """
        found = sorted(path for path in self.folder.glob("*") if not path.name.startswith("."))
        if not found:
            return PhaseRecord(0)
        state, _ = snapshots.load(found[-1])
        if state.values["fingerprint"] != self._fingerprint:
            raise ConfigError(
                f"{self.folder} contains an interrupted warm start with other options, or of "
                "another version of AgentRL",
                hint="run its command again, or delete the folder",
            )
        values = state.values
        return PhaseRecord(
            phase=values["phase"],
            steps=values["steps"],
            successes=values["successes"],
            cloner=State(state.tensors, values["cloner"]),
            earlier=values["earlier"],
            loss=values["loss"],
        )

    def save(self, record: PhaseRecord, cloner: State) -> None:
        """Save a record with its cloner's state, and delete older ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        step = record.earlier + record.steps
        directory = self.folder / f"{step:09d}"
        before = [path for path in self.folder.iterdir() if path.name != directory.name]
        if not directory.exists():
            values = {
                "fingerprint": self._fingerprint,
                "phase": record.phase,
                "steps": record.steps,
                "successes": record.successes,
                "earlier": record.earlier,
                "loss": record.loss,
                "cloner": dict(cloner.values),
            }
            state = State(cloner.tensors, values)
            name = self.folder.name.removeprefix(".")
            snapshots.save(directory, state, checkpoint_id=name, version=step)
        for path in before:
            shutil.rmtree(path)

    def remove(self) -> None:
        """Delete the state of a finished warm start."""
        shutil.rmtree(self.folder, ignore_errors=True)
