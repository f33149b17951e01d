"""The page *Episodes*: search episodes, and show one step by step with its group. It only reads.

The URL contains what is shown, so every view can be linked.
"""

import streamlit as st

from agentrl.core.types import EpisodeState, Status
from agentrl.dashboard import markup, vocabulary
from agentrl.dashboard.links import Here
from agentrl.dashboard.viewmodels import episodes, tokens
from agentrl.dashboard.viewmodels.tokens import TokenView, policy_name
from agentrl.dashboard.widgets import linked_table, plain_text
from agentrl.db.queries.episodes.detail import EpisodeDetail, Member, episode_steps
from agentrl.db.queries.episodes.filter import EpisodeFilter, Order
from agentrl.db.queries.episodes.search import SearchResult, tasks_of
from agentrl.db.store import Store

PAGE = episodes.PAGE
ANY = "any"


def page(store: Store, run_id: str) -> None:
    """Show the episode that the URL names, or the list."""
    here = Here(run_id, st.query_params.get("run", ""))
    if named := st.query_params.get("episode"):
        _one(store, here, named)
    else:
        _list(store, here)


def _list(store: Store, here: Here) -> None:
    st.title("Episodes")
    parameters = st.query_params.to_dict()
    criteria = episodes.filter_from_query(parameters)
    with store.read() as session:
        known = tasks_of(session, here.run_id)
    chosen = _form(criteria, known)
    if chosen is not None and chosen != criteria:
        st.query_params.from_dict({"run": here.run} | episodes.parameters_of(chosen))
        parameters, criteria = {}, chosen
    at = episodes.cursor(parameters)
    result = episodes.read_page(store, here.run_id, criteria, at)
    if result.rows:
        linked_table(episodes.rows(result, here, criteria.state), "episodes.csv")
    else:
        st.info(episodes.nothing(result, first=at is None))
    _pages(result, here, criteria, first=at is None)


def _form(current: EpisodeFilter, known: list[str]) -> EpisodeFilter | None:
    """Return the submitted filter; None: nothing was submitted."""
    with st.form("filter", border=True):
        above = st.columns(5)
        state = above[0].selectbox(
            "State", list(EpisodeState), index=list(EpisodeState).index(current.state)
        )
        task = above[1].selectbox("Task", [ANY, *known], index=_place(current.task, known))
        statuses = [status.value for status in Status]
        status = above[2].selectbox(
            "Status", [ANY, *statuses], index=_place(current.status or "", statuses)
        )
        words = above[3].text_input("Text in a call or answer", current.words)
        orders = list(Order)
        order = above[4].selectbox("Order", orders, index=orders.index(current.order))
        below = st.columns(6)
        item = below[0].text_input("Item", current.item_id)
        lowest = below[1].number_input("Reward from", value=current.reward_from)
        highest = below[2].number_input("Reward to", value=current.reward_to)
        version = below[3].number_input("Admitted at version", 0, value=current.version)
        checkpoint = below[4].text_input("Checkpoint", current.checkpoint)
        learned = below[5].number_input("Trained in update to version", 0, value=current.learned_at)
        if not st.form_submit_button("Search", type="primary"):
            return None
    return EpisodeFilter(
        state=EpisodeState(str(state)),
        task="" if task == ANY else str(task),
        status=None if status == ANY else Status(status),
        item_id=item.strip(),
        reward_from=lowest,
        reward_to=highest,
        version=version,
        checkpoint=checkpoint.strip(),
        learned_at=learned,
        words=words.strip(),
        order=Order(str(order)),
    )


def _place(chosen: str, known: list[str]) -> int:
    return known.index(chosen) + 1 if chosen in known else 0


def _pages(result: SearchResult, here: Here, criteria: EpisodeFilter, *, first: bool) -> None:
    """Show links to the first and the next page, and how many episodes were searched."""
    parameters, newest = episodes.parameters_of(criteria), criteria.order == Order.NEWEST
    links = []
    if not first:
        links.append(markup.Link("⟨ newest" if newest else "⟨ first", here.to(PAGE, **parameters)))
    if result.older is not None:
        older = here.to(PAGE, **parameters, before=episodes.before(result.older))
        links.append(markup.Link("older ⟩" if newest else "next ⟩", older))
    st.html(markup.links(links))
    if newest:
        text = f"Newest first. Each page searches at most {result.window:,} episodes"
    else:
        text = f"Most {criteria.order} first, among the newest {result.window:,} episodes"
    st.caption(text + " of this state.")


def _one(store: Store, here: Here, episode_id: str) -> None:
    detail = episodes.read_episode(store, here.run_id, episode_id)
    if detail is None:
        st.error(plain_text(f"Run {here.run} has no episode {episode_id}."))
        st.html(markup.links([markup.Link("all episodes", here.to(PAGE))]))
        return
    st.title(f"Episode {here.short(episode_id)}")
    _head(detail, here)
    _steps(store, here.run_id, detail)
    _group(store, detail, here)


def _head(detail: EpisodeDetail, here: Here) -> None:
    itself = detail.itself
    about: dict[str, markup.Cell] = {
        "task": detail.task,
        "item": markup.Link(detail.item_id, here.to(PAGE, item_id=detail.item_id)),
        "state": itself.state,
        "status": itself.status or itself.reason or "–",
        "reward": itself.reward,
        "score": itself.score,
        "turns": itself.turns,
        "tokens": itself.tokens,
        "attempts": itself.attempts,
        "seconds": itself.seconds,
        "worker": itself.worker_id or "–",
    }
    st.html(markup.table([about]))
    if detail.judge is not None:
        st.html(markup.table([{"judge": detail.judge, "score of the judge": detail.judge_score}]))
        st.html(markup.plain(detail.judge_reply or "–"))
    if itself.update is None:
        st.markdown(f"No update trained on this episode. The group is *{detail.group_state}*.")
        return
    update = itself.update
    learned: dict[str, markup.Cell] = {
        "trained in": f"update to v{update.version}, {update.state}",
        "checkpoint": markup.Link(
            here.short(update.checkpoint_id),
            here.to("Checkpoints", checkpoint=update.checkpoint_id),
        ),
        "sampled tokens": update.loss_tokens,
        "advantage per token": update.advantage,
    }
    if update.is_live:
        others = here.to(PAGE, learned_at=str(update.version))
        learned["other episodes"] = markup.Link("all episodes of this update", others)
    st.html(markup.table([learned]))


def _steps(store: Store, run_id: str, detail: EpisodeDetail) -> None:
    st.subheader("Steps")
    if not detail.steps:
        st.info("No step is recorded yet." if detail.body is None else "The episode has no step.")
        return
    body, why = episodes.trajectory_of(detail)
    view, mode = None, tokens.MODES[0]
    if body is None:
        st.warning(why)
    else:
        directory = vocabulary.find(episodes.directories(store, run_id, detail))
        with st.spinner("Reading the vocabulary"):
            words = vocabulary.vocabulary_of(directory) if directory else vocabulary.NONE
        if not words.pieces:
            st.caption("No tokenizer.json of this run can be read, so tokens are shown as numbers.")
        update = detail.itself.update
        view = tokens.token_view(body, words, update.advantage if update else None)
        mode = st.radio("Colour of sampled tokens", tokens.MODES, horizontal=True)
        st.html(markup.legend(tokens.legend(mode, body)))
        if mode == "advantage" and view.advantage is None:
            st.caption("No update trained on this episode, or its advantage was not stored.")
    for step in detail.steps:
        st.markdown(f"**{episodes.headline(step)}**")
        _step(view, step.number, mode, episodes.readable(step.call), step.answer)


def _step(view: TokenView | None, number: int, mode: str, call: str, answer: str) -> None:
    """Show the prompt of a step, its sampled tokens, its call and the answer."""
    if view is not None and number < len(view.trajectory.steps):
        with st.expander("Prompt", expanded=number == 0):
            st.html(markup.tokens(view.observation_tokens(number)))
        st.html(markup.tokens(view.step_tokens(number, mode)))
    left, right = st.columns(2)
    left.caption("call")
    left.html(markup.plain(call or "–"))
    right.caption("answer")
    right.html(markup.plain(answer or "–"))


def _group(store: Store, detail: EpisodeDetail, here: Here) -> None:
    st.subheader("Group")
    reason = f", {detail.group_reason}" if detail.group_reason else ""
    st.markdown(
        f"`{here.short(detail.group_id)}` · {detail.group_state}{reason} · admitted at version "
        f"{detail.admitted_version}"
    )
    place = detail.members.index(detail.itself)
    st.html(markup.table(episodes.member_rows(detail.members, here), here=place))
    other = episodes.contrast(detail.itself, detail.members)
    if other is None:
        return
    names = {f"member {each.member}": each for each in detail.members}
    chosen = st.multiselect(
        "Side by side",
        list(names),
        default=[f"member {detail.itself.member}", f"member {other.member}"],
        max_selections=4,
    )
    for column, name in zip(st.columns(max(len(chosen), 1)), chosen, strict=False):
        with column:
            _sibling(store, names[name])


def _sibling(store: Store, member: Member) -> None:
    """Show all steps of a member, from top to bottom."""
    reward = "–" if member.reward is None else f"{member.reward:.3g}"
    st.markdown(f"**member {member.member}** · {member.status or member.state} · reward {reward}")
    with store.read() as session:
        steps = episode_steps(session, member.episode_id, member.fence, episodes.TEXT)
    for step in steps:
        paid = f" · reward {step.reward:.3g}" if step.reward else ""
        st.caption(f"Step {step.number} · {policy_name(step.version, step.track)}{paid}")
        call = episodes.readable(step.call) or "–"
        st.html(markup.plain(f"{call}\n⟶ {step.answer}"))
    if not steps:
        st.caption("No step is recorded.")
