"""MLflow: a tracking server, or a folder of files."""

import os
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import LifecycleStage, Metric, Param, RunStatus
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from agentrl.core.config_loading import flatten
from agentrl.ops.trackers.base import Figure, TrackerError, TrackerPlace, figure

RUN = "agentrl.run"  # the tag that finds a run again
LONGEST = 500  # characters of a parameter
AT_ONCE = 100  # parameters


class MLflow:
    """A Tracker."""

    def __init__(self, ground: TrackerPlace) -> None:
        if not ground.url:
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # which MLflow asks to be said
        self._files = None if ground.url else ground.folder
        self._uri = ground.url or ground.folder.resolve().as_uri()
        self._project = ground.project
        self._client: Any = None
        self._run_id = ""

    def start(self, run: str, config: Mapping[str, Any]) -> Collection[Figure]:
        """Find the run with the tag, or create one with the configuration as parameters."""
        try:
            self._client = MlflowClient(self._uri)
            found = self._client.get_experiment_by_name(self._project)
            experiment = (
                found.experiment_id if found else self._client.create_experiment(self._project)
            )
            known = self._find_runs(experiment, run)
            self._run_id = known[0].info.run_id if known else self._new(experiment, run, config)
            return set(self._read_figures())
        except MlflowException as error:
            raise TrackerError(f"mlflow {self._uri}: {error}") from error

    def log(self, version: int, metrics: Mapping[str, float]) -> None:
        """See Tracker.log. If it fails, some of the figures may have been written."""
        at = int(time.time() * 1000)
        figures = [Metric(name, value, at, version) for name, value in metrics.items()]
        try:
            self._client.log_batch(self._run_id, figures)
        except MlflowException as error:
            raise TrackerError(f"mlflow {self._uri}: {error}") from error

    def finish(self) -> None:
        """See Tracker.finish."""
        client, run_id = self._client, self._run_id
        self._client, self._run_id = None, ""
        if client is None or not run_id:
            return
        try:
            client.set_terminated(run_id, RunStatus.to_string(RunStatus.FINISHED))
        except MlflowException as error:
            raise TrackerError(f"mlflow {self._uri}: {error}") from error

    def _find_runs(self, experiment: str, run: str) -> list[Any]:
        """Return the known figures; from files only ours, since a search would read all runs."""
        if self._files is None:
            return list(self._client.search_runs([experiment], f"tags.`{RUN}` = '{run}'"))
        tags = (self._files / experiment).glob(f"*/tags/{RUN}")
        folders = [path.parents[1] for path in tags if path.read_text() == run]
        for folder in folders:
            _remove_cut_lines(folder / "metrics")
        found = [self._client.get_run(folder.name) for folder in folders]
        return [each for each in found if each.info.lifecycle_stage == LifecycleStage.ACTIVE]

    def _read_figures(self) -> Iterator[Figure]:
        for name in self._client.get_run(self._run_id).data.metrics:
            for each in self._client.get_metric_history(self._run_id, name):
                yield figure(each.step, name, each.value)

    def _new(self, experiment: str, run: str, config: Mapping[str, Any]) -> str:
        made = self._client.create_run(experiment, tags={RUN: run, "mlflow.runName": run})
        run_id: str = made.info.run_id
        values = [Param(key, str(v)[:LONGEST]) for key, v in flatten(config).items()]
        for start in range(0, len(values), AT_ONCE):
            self._client.log_batch(run_id, params=values[start : start + AT_ONCE])
        return run_id


def _remove_cut_lines(metrics: Path) -> None:
    """Remove lines cut off by a kill or a full disk; MLflow would refuse to read the run."""
    for path in metrics.rglob("*"):
        if path.is_file() and not (content := path.read_bytes()).endswith(b"\n"):
            whole = content[: content.rfind(b"\n") + 1]
            if whole:
                path.write_bytes(whole)
            else:
                path.unlink()
