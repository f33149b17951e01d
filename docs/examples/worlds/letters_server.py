"""An OpenEnv server: the agent repeats a letter that the seed draws. It needs the package openenv.

Example: .venv-openenv/bin/python docs/examples/worlds/letters_server.py 8123
"""

import random
import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app


class Letter(Action):
    """Say the letter."""

    letter: str


class Shown(Observation):
    """What the agent reads."""

    text: str


class Letters(Environment):
    """Ends with reward 1 for the right letter; a wrong one costs 0.25."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Shown:
        self._state = State(episode_id=episode_id, step_count=0)
        self._letter = random.Random(seed).choice("xyz")
        return Shown(text=f"Say {self._letter}.")

    def step(self, action: Letter, **_: Any) -> Shown:
        self._state.step_count += 1
        if action.letter == self._letter:
            return Shown(text="yes", done=True, reward=1.0)
        return Shown(text=f"No. Say {self._letter}.", reward=-0.25)

    @property
    def state(self) -> State:
        return self._state


app = create_app(Letters, Letter, Shown, env_name="letters", max_concurrent_envs=256)
uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
