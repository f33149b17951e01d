"""Writes episodes as the Parquet files of a dataset, a row for each (extra `parquet`)."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.db.admin.parquet import require_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

TOKENS = 1 << 22  # of a file, before the next one begins

Row = Mapping[str, Any]


def write_dataset(folder: Path, rows: Iterable[Row]) -> None:
    """Write FOLDER/train-N.parquet. Raises StoreError without pyarrow."""
    require_pyarrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    for number, some in enumerate(_files(rows)):
        table = pa.Table.from_pylist(some, schema=_schema())
        pq.write_table(table, folder / f"train-{number:05d}.parquet", compression="zstd")


def _files(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield the rows of each file."""
    kept: list[Row] = []
    tokens = 0
    for row in rows:
        kept.append(row)
        tokens += len(row["token_ids"])
        if tokens >= TOKENS:
            yield kept
            kept, tokens = [], 0
    if kept:
        yield kept


def _schema() -> "pa.Schema":
    import pyarrow as pa

    text, whole, real = pa.string(), pa.int32(), pa.float64()
    message = {"role": text, "content": text, "name": text}
    policy = {"checkpoint_id": text, "version": pa.int64(), "track": text, "server_id": text}
    policy |= {"trainable": pa.bool_()}
    step = {"policy_index": whole, "start": whole, "end": whole, "temperature": real}
    step |= {"finish_reason": text, "reward": real, "judge_score": real}
    names = ("episode_id", "run_id", "group_id", "task", "item_id", "status")
    fields: Mapping[str, Any] = {
        **dict.fromkeys(names, text),
        "reward": real,
        "score": real,
        "advantage": real,
        "trained_version": pa.int64(),
        "messages": pa.list_(pa.struct(list(message.items()))),
        "token_ids": pa.list_(whole),
        "loss_mask": pa.list_(pa.uint8()),
        "logprobs": pa.list_(pa.float32()),
        "policy_index": pa.list_(pa.uint8()),
        "policies": pa.list_(pa.struct(list(policy.items()))),
        "steps": pa.list_(pa.struct(list(step.items()))),
        "metrics": text,
    }
    return pa.schema(list(fields.items()))
