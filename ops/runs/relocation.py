"""Updates the paths of a run whose folder was moved.

If a user moves or copies the folder of a run with its database, the run then uses the folder beside
the database, or the one in the configuration file.
"""

from pathlib import Path

import msgspec

from agentrl.core.config.config import Config
from agentrl.db.store import Store
from agentrl.db.transitions import lifecycle


def with_home(config: Config, home: Path) -> Config:
    """Return the configuration with an absolute `run.home`."""
    run = msgspec.structs.replace(config.run, home=str(home))
    return msgspec.structs.replace(config, run=run)


def beside(config: Config, url: str) -> Path | None:
    """Return the home of a run whose store lies in it; None: the store is elsewhere."""
    if config.store.url != "embedded" or not url.startswith("sqlite"):
        return None
    return Path(url.partition(":///")[2]).resolve().parent


def settle(store: Store, run_id: str, home: Path) -> str:
    """Update checkpoint paths in the run's rows to this home; return the previous folder.

    Returns an empty text if nothing moved. Paths of files that are not here stay unchanged.
    """
    folder = home / "checkpoints" / run_id
    if not folder.is_dir():
        return ""
    present = {path.name for path in folder.iterdir()}
    return store.transact(lambda session: lifecycle.relocate(session, run_id, folder, present))
