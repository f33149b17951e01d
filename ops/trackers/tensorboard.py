"""TensorBoard: event files in a folder, one event per row."""

import json
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from agentrl.ops.trackers.base import Figure, TrackerPlace, figure


class TensorBoard:
    """A Tracker. Each start creates a file; TensorBoard reads all files of a folder as one run."""

    def __init__(self, ground: TrackerPlace) -> None:
        self._root = ground.folder
        self._writer: Any = None

    def start(self, run: str, config: Mapping[str, Any]) -> Collection[Figure]:
        """See Tracker.start. The configuration is written once, under Text."""
        folder = self._root / run
        held = set(_read_figures(folder))
        known = folder.is_dir()
        self._writer = EventFileWriter(str(folder), max_queue_size=1, flush_secs=1)
        if not known:
            self._add(0, [_text("config", json.dumps(config, indent=1))])
        return held

    def log(self, version: int, metrics: Mapping[str, float]) -> None:
        """See Tracker.log. An event is written completely or not at all."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(version, values)

    def finish(self) -> None:
        """See Tracker.finish."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _add(self, step: int, values: list[Any]) -> None:
        self._writer.add_event(
            Event(wall_time=time.time(), step=step, summary=Summary(value=values))
        )
        self._writer.flush()


def _read_figures(folder: Path) -> Iterator[Figure]:
    """Return the figures in all files, without a record that was cut off by a kill."""
    for path in sorted(folder.glob("events.out.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    yield figure(event.step, value.tag, value.simple_value)


def _text(tag: str, text: str) -> Any:
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    return Summary.Value(
        tag=tag,
        metadata=SummaryMetadata(plugin_data=plugin),
        tensor=TensorProto(
            dtype=DT_STRING,
            string_val=[f"```\n{text}\n```".encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        ),
    )
