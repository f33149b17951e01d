"""The driver of the shell, as a process of this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import eventually
from sandbox_driver import DriverProcess


class Driver(DriverProcess):
    def run(self, code: str, *arguments: str, watch: bool = False, **more: Any) -> dict[str, Any]:
        request = {"language": "bash", "timeout_s": 10, "watch": watch and str(self.folder)}
        return self.ask(run=code, arguments=arguments, **(request | more))

    def shell(self, command: str, timeout_s: float = 10.0) -> str:
        answer = self.ask(shell=command, timeout_s=timeout_s)
        notes = [name for name in ("late", "ended") if answer[name]]
        return " ".join([answer["text"].strip(), *notes])


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    driver = Driver("oslinux.in_sandbox", tmp_path_factory.mktemp("home"))
    yield driver
    assert driver.end() == 0


def alive(pid: str) -> bool:
    stat = Path(f"/proc/{int(pid)}/stat")
    return stat.exists() and ") Z " not in stat.read_text()


def test_a_script_runs_as_a_process_of_its_own(driver: Driver) -> None:
    answer = driver.run('echo "$0 $1 $2"; echo no >&2; exit 3', "a b", "c\0d")
    assert answer == {"status": 3, "text": "-- a b cd\n", "error": "no\n", "changed": False}
    python = driver.run("import sys; print(sys.argv)", "x", language="python")
    assert (python["status"], python["text"]) == (0, "['-c', 'x']\n")
    assert driver.run("kill -9 $$")["status"] == -9
    assert driver.run("sleep 9", timeout_s=0.1)["status"] is None


def test_of_much_output_the_head_is_kept(driver: Driver) -> None:
    answer = driver.run("head -c 30000000 /dev/zero | tr '\\0' x")
    assert (answer["status"], len(answer["text"]), set(answer["text"])) == (0, 1 << 17, {"x"})


def test_the_shell_keeps_its_folder_its_variables_and_its_functions(driver: Driver) -> None:
    assert driver.shell("cd /; name=kim; hi() { echo hi $name; }") == ""
    assert driver.shell("pwd; hi; echo 'a!b'; ls /nowhere") == (
        "/\nhi kim\na!b\nls: cannot access '/nowhere': No such file or directory"
    )


def test_what_cannot_be_parsed_or_waits_for_input_is_the_commands_own_matter(
    driver: Driver,
) -> None:
    driver.shell("name=kim")
    assert "unexpected EOF" in driver.shell("echo 'open")
    assert "syntax error" in driver.shell("if true; then")
    assert driver.shell("cat; read line; cat <<END\n$name\nEND") == "kim"


def test_a_slow_command_is_interrupted_and_the_shell_goes_on(driver: Driver) -> None:
    driver.shell("cd /usr; name=eva")
    assert driver.shell("echo on; sleep 60; echo never", 1.0) == "on late"
    assert driver.shell("while :; do :; done", 0.3) == " late"
    assert driver.shell("pwd; echo $name") == "/usr\neva"


@pytest.mark.parametrize(
    "stubborn", ["trap '' INT; while :; do :; done", "kill -STOP $$", "exec 198>&-"]
)
def test_a_shell_that_does_not_come_back_is_replaced(driver: Driver, stubborn: str) -> None:
    assert driver.shell(stubborn, 0.2).endswith(" late ended")
    assert driver.shell("pwd; echo $name") == str(driver.folder)


def test_a_shell_that_ends_is_replaced(driver: Driver) -> None:
    assert driver.shell("name=ida; exit 3").endswith(" ended")
    assert driver.shell("echo new $name") == "new"


def test_a_shell_that_cannot_start_any_more_is_its_agents_own_matter(tmp_path: Path) -> None:
    driver = Driver("oslinux.in_sandbox", tmp_path)
    assert driver.shell("echo exit > ~/.bash_profile; exit").endswith(" ended")
    assert driver.shell("echo never") == " ended"
    assert driver.run("rm ~/.bash_profile")["status"] == 0
    assert driver.shell("echo not yet") == " ended"
    assert driver.shell("echo back") == "back"
    driver.end()


def test_stop_kills_what_the_agent_left_and_keeps_what_was_there(driver: Driver) -> None:
    kept = driver.run("sleep 60 & echo $!")["text"]
    assert driver.ask(keep=True) == {}
    left = driver.shell("(trap '' TERM HUP INT; setsid sleep 61 >/dev/null & echo $!)")
    assert alive(kept)
    assert alive(left)
    assert driver.ask(stop=True) == {"stopped": True}
    assert alive(kept)
    assert not alive(left)
    assert driver.shell("echo fresh") == "fresh"


def test_a_watched_script_tells_whether_anything_changed(driver: Driver) -> None:
    driver.run("mkdir -p deep; echo 1 > deep/file")
    driver.ask(keep=True)
    for reading in ("cat deep/file; find . | wc -l", "sort < deep/file | uniq -c"):
        assert driver.run(reading, watch=True)["changed"] is False
    for writing in ("echo 2 > deep/file", "chmod 600 deep/file", "mv deep/file f", "rm f"):
        assert driver.run(writing, watch=True)["changed"] is True


def test_a_watched_script_leaves_the_shell_of_the_start_script(tmp_path: Path) -> None:
    driver = Driver("oslinux.in_sandbox", tmp_path)
    driver.shell("cd /usr; name=kim; sleep 60 &")
    driver.ask(keep=True)
    assert driver.run("cat /etc/hostname; true", watch=True)["changed"] is False
    assert driver.shell("pwd; echo $name") == "/usr\nkim"
    driver.end()


def test_a_watched_script_leaves_nothing_running(driver: Driver) -> None:
    driver.ask(keep=True)
    left = driver.run("sleep 60 >/dev/null & echo $!", watch=True)["text"]
    assert not alive(left)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(max_size=30, alphabet="ab '\"\\$(){}<|;\n#!`\0é\x1b"))
def test_any_text_is_a_command_that_ends(driver: Driver, text: str) -> None:
    guarded = f"cd {driver.folder}; PATH=/nowhere\n{text}"
    answer = driver.ask(shell=guarded, timeout_s=2.0)
    assert set(answer) == {"text", "late", "ended"}
    assert driver.ask(stop=True) == {"stopped": True}


def test_a_driver_whose_input_ends_takes_everything_along(tmp_path: Path) -> None:
    driver = Driver("oslinux.in_sandbox", tmp_path)
    left = driver.run("setsid sleep 60 >/dev/null & echo $!")["text"]
    driver.ask(keep=True)
    driver.end()
    eventually(lambda: not alive(left), within_s=60, text=lambda: f"{left} lives on")
