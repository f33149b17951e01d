"""The command line of codex on an item's question; it prints the last message."""

import json
import os
import sys

item = json.load(sys.stdin)
os.chdir(os.environ["HOME"])
settings = {
    "model": "policy",
    "model_provider": "gateway",
    "model_providers.gateway.name": "gateway",
    "model_providers.gateway.base_url": os.environ["OPENAI_BASE_URL"],
    "model_providers.gateway.env_key": "OPENAI_API_KEY",
}
given = [part for name, each in settings.items() for part in ("-c", f"{name}={json.dumps(each)}")]
flags = ["--ephemeral", "--skip-git-repo-check", "--sandbox", "danger-full-access"]
os.execvp("codex", ["codex", "exec", *flags, *given, item["question"]])  # noqa: S606
