"""The README of a policy that a warm start made."""

from collections.abc import Mapping

from agentrl.ops.warmstart.options import WarmstartOptions, WarmstartReport

CARD = """\
# {name}

A starting policy, made by behaviour cloning and not yet trained by reinforcement: it knows the form
of the tasks and fails most of the time. {parameters:,} parameters, {dtype}; {origin}.

    {command}

It learned from experts, who err with the given chance a turn, or from imported episodes.

| phase | noise | steps, at most | until success |
|---|---|---|---|
{phases}

{steps} steps, {demonstrations:,} demonstrations, {seconds:.0f} s, seed {seed}; at the end
{loss:.3f} nats a token.{skills}
"""
SKILLS = """ On {measured} held-out items a task:

| task | success, sampled at temperature 1 | solved in 8 attempts | greedy |
|---|---|---|---|
"""
REPORTED = ("parameters", "steps", "demonstrations", "seconds", "loss")


def card(options: WarmstartOptions, report: WarmstartReport) -> str:
    """Return the model's README: what it is, how it was made, what it can do."""
    phases = "\n".join(
        f"| {number} | {_noise_text(phase.noise)} | {phase.steps} | {phase.until or ''} |"
        for number, phase in enumerate(options.phases, 1)
    )
    skills = "\n".join(
        f"| {name} | {skill.sampled:.3f} | {skill.pass_at_8:.3f} | {skill.greedy:.3f} |"
        for name, skill in report.skills.items()
    )
    if skills:
        skills = SKILLS.format(measured=options.measured) + skills
    origin = f"from `{options.model}`" if options.model else "new weights and a new tokenizer"
    return CARD.format(
        name=options.out.name,
        origin=origin,
        phases=phases,
        skills=skills,
        command=options.command,
        seed=options.seed,
        dtype="in the data type of the starting model" if options.lora.rank else options.dtype,
        **{name: getattr(report, name) for name in REPORTED},
    )


def _noise_text(noise: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:g}" for name, share in noise.items())
