"""Rows as CSV (RFC 4180), for downloads."""

import csv
import io
from collections.abc import Sequence

from agentrl.dashboard.markup import Link, Row


def as_csv(rows: Sequence[Row]) -> str:
    """Return rows with a header; the columns are the keys of all rows. A link is its text."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns)
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {name: each.text if isinstance(each, Link) else each for name, each in row.items()}
        )
    return out.getvalue()
