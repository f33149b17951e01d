"""The page *Checkpoints*: lineage, serving, evaluations, registry. It only reads."""

import streamlit as st

from agentrl.core.types import RUN_OVER, UpdateState
from agentrl.dashboard import markup
from agentrl.dashboard.links import Here
from agentrl.dashboard.viewmodels import checkpoints
from agentrl.dashboard.viewmodels.checkpoints import (
    EVALUATIONS,
    NEWEST,
    SERVINGS,
    Registry,
    read_registry,
)
from agentrl.dashboard.widgets import chart, linked_table, live_part, plain_text, table
from agentrl.db.registry.lineage import CheckpointEntry
from agentrl.db.store import Store
from agentrl.db.transitions.runs import run_state

PAGE = checkpoints.PAGE


def page(store: Store, run_id: str) -> None:
    """Show the checkpoint that the URL names, then all; refresh while the run is active."""
    with store.read() as session:
        over = run_state(session, run_id) in RUN_OVER
    here = Here(run_id, st.query_params.get("run", ""))
    st.title("Checkpoints")
    if named := st.query_params.get("checkpoint"):
        _draw_checkpoint(checkpoints.read_checkpoint(store, run_id, named), here, named)
    live_part(lambda: draw(read_registry(store, run_id), here), over=over)


def draw(registry: Registry, here: Here) -> None:
    """Show all checkpoints."""
    st.subheader("Lineage")
    st.html(markup.plain(checkpoints.tree(registry) or "No checkpoint yet."))
    counts = ", ".join(f"{number} {state}" for state, number in sorted(registry.states.items()))
    st.caption(
        f"Checkpoints: {counts.replace('_', ' ')}. Of old ones (trainer.keep_checkpoints) "
        "the files are deleted; the list keeps them."
    )
    _draw_serving(registry, here)
    _draw_measurements(registry)
    st.subheader("Registry")
    linked_table(checkpoints.rows(registry.newest, registry, here), "checkpoints.csv")
    st.caption(f"The newest {NEWEST} checkpoints. The trainer resumes from a snapshot.")


def _draw_serving(registry: Registry, here: Here) -> None:
    st.subheader("Serving now")
    now = [each for each in registry.servings if each.live]
    for each in now:
        version = f"**v{each.version}** as " if each.version >= 0 else ""
        st.markdown(
            f"**{each.server}** ({each.engine}) serves {version}*{each.track}*, "
            f"for {each.until_min - each.from_min:.1f} minutes."
        )
    if not now:
        st.info("No policy server serves a checkpoint now.")
    if registry.servings:
        chart(
            checkpoints.serving_chart(registry.servings, here),
            f"Which server served which checkpoint, by track. At most the last {SERVINGS} periods.",
        )


def _draw_measurements(registry: Registry) -> None:
    st.subheader("Evaluations")
    if not registry.measured:
        st.info("No evaluation yet. Evaluate a checkpoint with `agentrl eval CONFIG`.")
        return
    if any(each.version is not None and each.is_complete for each in registry.measured):
        chart(
            checkpoints.evaluation_chart(registry.measured),
            "Success by version. The bars are 95 % intervals.",
        )
    table(checkpoints.evaluation_rows(registry.measured), "", percent=["success"])
    st.caption(
        f"The latest {EVALUATIONS} evaluations. While one lasts, its success is too high, because "
        "episodes that win end first: the chart leaves it out."
    )


def _draw_checkpoint(entry: CheckpointEntry | None, here: Here, named: str) -> None:
    """Show a checkpoint, the update that created it, and links to its episodes."""
    if entry is None:
        st.error(plain_text(f"Run {here.run} has no checkpoint {named}."))
        return
    st.subheader(f"Version {entry.version}")
    about: dict[str, markup.Cell] = {
        "checkpoint": entry.checkpoint_id,
        "state": entry.state.value.replace("_", " "),
        "files": checkpoints.FILES[entry.state],
        "snapshot": "yes" if entry.snapshot else "–",
        "path": entry.path,
        "parent": "–",
    }
    if entry.parent_id:
        parent = here.to(PAGE, checkpoint=entry.parent_id)
        about["parent"] = markup.Link(here.short(entry.parent_id), parent)
    st.html(markup.table([about]))
    links = [markup.Link("episodes that it sampled", here.to("Episodes", checkpoint=named))]
    if entry.update_state not in ("", UpdateState.ROLLED_BACK):
        learned = here.to("Episodes", learned_at=str(entry.version))
        links.append(markup.Link("episodes that its update trained on", learned))
    st.html(markup.links(links))
    if not entry.update_state:
        return
    why = f" ({entry.reason})" if entry.reason else ""
    st.markdown(
        f"The update is **{entry.update_state.replace('_', ' ')}**{why}: {entry.groups} groups, "
        f"{entry.episodes} episodes, {entry.loss_tokens:,} sampled tokens."
    )
    with st.expander("Figures of the update"):
        rows = [{"figure": name, "value": value} for name, value in sorted(entry.metrics.items())]
        table(rows, "")
