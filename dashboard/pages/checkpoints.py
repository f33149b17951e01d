"""The page *Checkpoints*: lineage, registry, who serves what, measurements. It only reads."""

import streamlit as st

from agentrl.core.types import RUN_OVER
from agentrl.dashboard import markup
from agentrl.dashboard.links import Here
from agentrl.dashboard.parts import chart, live
from agentrl.dashboard.viewmodels import checkpoints
from agentrl.dashboard.viewmodels.checkpoints import EVALUATIONS, NEWEST, SERVINGS, Registry, look
from agentrl.db.registry.lineage import Entry
from agentrl.db.store import Store
from agentrl.db.transitions.runs import run_state

PAGE = checkpoints.PAGE


def page(store: Store, run_id: str) -> None:
    """The checkpoint that the URL names, then all; look again while the run goes on."""
    with store.read() as session:
        over = run_state(session, run_id) in RUN_OVER
    here = Here(run_id, st.query_params.get("run", ""))
    st.title("Checkpoints")
    if named := st.query_params.get("checkpoint"):
        _one(checkpoints.one(store, run_id, named), here, named)
    live(lambda: draw(look(store, run_id), here), over=over)


def draw(registry: Registry, here: Here) -> None:
    """All of them for one moment."""
    st.subheader("Lineage")
    st.html(markup.plain(checkpoints.tree(registry) or "no checkpoint"))
    counts = ", ".join(f"{number} {state}" for state, number in sorted(registry.states.items()))
    st.caption(f"{counts.replace('_', ' ')}. Of a deleted one the row stays, the files are gone.")
    _serving(registry, here)
    _measured(registry)
    st.subheader("Registry")
    st.html(markup.table(checkpoints.rows(registry.newest, registry, here)))
    st.caption(f"The newest {NEWEST}. A snapshot is what a trainer resumes from.")


def _serving(registry: Registry, here: Here) -> None:
    st.subheader("Who serves what")
    now = [each for each in registry.servings if each.live]
    for each in now:
        st.markdown(
            f"**{each.server}** ({each.engine}) serves **v{each.version}** as *{each.track}*, "
            f"for {each.until_min - each.from_min:.1f} minutes"
        )
    if not now:
        st.info("Nothing is served now.")
    if registry.servings:
        chart(
            checkpoints.serving_chart(registry.servings, here),
            f"Each checkpoint on each server and track; the last {SERVINGS} stretches.",
        )


def _measured(registry: Registry) -> None:
    st.subheader("Measurements")
    if not registry.measured:
        st.info("No evaluation yet. Measure a checkpoint with `agentrl eval CONFIG`.")
        return
    if any(each.version is not None for each in registry.measured):
        chart(
            checkpoints.evaluation_chart(registry.measured),
            "Success by version; the bars are 95 % intervals.",
        )
    st.html(markup.table(checkpoints.evaluation_rows(registry.measured)))
    st.caption(f"The latest {EVALUATIONS}.")


def _one(entry: Entry | None, here: Here, named: str) -> None:
    """A checkpoint, the update that made it, and where to look further."""
    if entry is None:
        st.error(f"Run {here.run} has no checkpoint {named}.")
        return
    st.subheader(f"Version {entry.version}")
    about: dict[str, markup.Cell] = {
        "checkpoint": entry.checkpoint_id,
        "state": entry.state.value.replace("_", " "),
        "files": checkpoints.FILES[entry.state],
        "snapshot": "yes" if entry.snapshot else "–",
        "path": entry.path,
        "came from": "–",
    }
    if entry.parent_id:
        parent = here.to(PAGE, checkpoint=entry.parent_id)
        about["came from"] = markup.Link(here.short(entry.parent_id), parent)
    st.html(markup.table([about]))
    links = [markup.Link("episodes in which it acted", here.to("Episodes", checkpoint=named))]
    if entry.update_state:
        learned = here.to("Episodes", learned_at=str(entry.version))
        links.append(markup.Link("episodes that its update learned from", learned))
    st.html(markup.links(links))
    if not entry.update_state:
        return
    why = f" ({entry.reason})" if entry.reason else ""
    st.markdown(
        f"Its update is **{entry.update_state.replace('_', ' ')}**{why}: {entry.groups} groups, "
        f"{entry.episodes} episodes, {entry.loss_tokens:,} loss tokens."
    )
    with st.expander("Its metrics"):
        rows = [{"metric": name, "value": value} for name, value in sorted(entry.metrics.items())]
        st.html(markup.table(rows))
