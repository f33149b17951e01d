import os
import signal
import subprocess
import sys
from pathlib import Path

from backends import NEEDS_DEEPSPEED
from running import eventually, processes_of

pytestmark = NEEDS_DEEPSPEED

PROGRAM = """
import sys
from pathlib import Path
from agentrl.ops.doctor.deepspeed_build import build
sys.executable = {compiler!r}
build(Path({config!r}))
"""
# Like ninja, it gives its child a process group of its own.
COMPILER = f"""#!/bin/sh
{sys.executable} -c 'import os, time; os.setpgid(0, 0); print(flush=True); time.sleep(60)' |
    (read line; touch "$TORCH_EXTENSIONS_DIR/begun"; cat)
"""


def test_a_terminated_build_leaves_no_compiler_and_no_folder(tmp_path: Path) -> None:
    compiler, config, scratch = (tmp_path / name for name in ("python", "run.toml", "scratch"))
    scratch.mkdir()
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    config.write_text(
        f'[tasks.dbbench]\n[trainer.deepspeed]\nextensions = "{tmp_path / "extensions"}"\n'
    )
    build = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(compiler=str(compiler), config=str(config))],
        env=os.environ | {"TMPDIR": str(scratch)},
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(
            lambda: list(scratch.rglob("begun")),
            within_s=60,
            text=lambda: "the build did not begin to compile",
        )
        build.send_signal(signal.SIGTERM)
        assert build.wait(60) != 0
        eventually(lambda: not processes_of(scratch), within_s=10, text=lambda: "compilers run on")
        assert list(scratch.iterdir()) == []
    finally:
        for pid in processes_of(scratch):
            os.kill(pid, signal.SIGKILL)
        build.wait()
