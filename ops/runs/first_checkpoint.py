"""The first checkpoint of a run: the starting model as version 0, like every other checkpoint."""

import os
import shutil
from functools import partial
from pathlib import Path

from sqlalchemy.orm import Session

from agentrl.checkpoints import directories
from agentrl.checkpoints.checkpoint_store import CheckpointStore, is_url
from agentrl.core.config.sections.policies import Model
from agentrl.core.types import CheckpointState
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import checkpoints
from agentrl.db.store import Store, now
from agentrl.workers.conversation.template import replace_template


def publish_first_checkpoint(
    store: Store, place: CheckpointStore, model: Model, run_id: str
) -> None:
    """Publish the starting model, unless it is published. Raises CheckpointError, OSError.

    Under a URL another host may have done so, from files of its own.
    """
    checkpoint_id = f"{run_id}-v000000"
    found = store.ask(lambda session: session.get(Checkpoint, checkpoint_id))
    if found is not None and place.url:
        _upload_local(store, place, found)
        return
    if not place.local(checkpoint_id).exists():
        directories.publish(
            place.local(checkpoint_id),
            lambda target: link_files(model, target),
            checkpoint_id=checkpoint_id,
            version=0,
            parent=None,
        )
    path = place.put(checkpoint_id)

    def register(session: Session) -> None:
        session.get_one(Run, run_id, with_for_update=True)
        if session.get(Checkpoint, checkpoint_id) is None:
            session.add(
                Checkpoint(
                    checkpoint_id=checkpoint_id,
                    run_id=run_id,
                    version=0,
                    path=path,
                    state=CheckpointState.LIVE,
                    created_at=now(),
                ),
            )

    store.transact(register)


def _upload_local(store: Store, place: CheckpointStore, found: Checkpoint) -> None:
    """Upload the first checkpoint of a run that began without a URL, if its files are here."""
    checkpoint_id, former = found.checkpoint_id, found.path
    homes = (Path(former), place.home / checkpoint_id)  # the second: the run's folder was moved
    here = next((path for path in homes if path.is_dir()), None)
    if is_url(former) or here is None:
        return
    copy = place.local(checkpoint_id)
    if not copy.exists():
        with directories.write_directory(copy) as partial_copy:
            shutil.copytree(here, partial_copy, copy_function=_link, dirs_exist_ok=True)
    path = place.put(checkpoint_id)
    store.transact(
        partial(checkpoints.move_checkpoint, checkpoint_id=checkpoint_id, former=former, path=path)
    )


def link_files(model: Model, target: Path) -> None:
    """Hard-link the model's files where possible, or copy them, with the run's chat template."""
    for path in Path(model.path).iterdir():
        if path.is_file() and path.name not in ("manifest.json", "README.md"):
            _link(path, target / path.name)
    replace_template(target, model.chat_template)


def _link(path: str | Path, target: str | Path) -> None:
    try:
        os.link(Path(path).resolve(), target)
    except OSError:
        shutil.copyfile(path, target)
