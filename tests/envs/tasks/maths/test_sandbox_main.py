"""The driver of the interpreter, as a process of this machine."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sandbox_driver import DriverProcess

MEMORY = 128 << 20


class Driver(DriverProcess):
    def run(self, code: str, timeout_s: float = 20.0) -> str:
        """The text, the error, and whether the interpreter was late or ended."""
        answer = self.ask(run=code, timeout_s=timeout_s, memory_bytes=MEMORY)
        notes = [name for name in ("late", "ended") if answer[name]]
        return " ".join(filter(None, [answer["text"].strip(), answer["error"], *notes]))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    driver = Driver("maths", tmp_path_factory.mktemp("home"))
    yield driver
    assert driver.end() == 0


def test_code_prints_and_its_last_expression_is_shown(driver: Driver) -> None:
    assert driver.run("print('a'); 3 + 4") == "a\n7"
    assert driver.run("x = 5\nfor i in range(3): x += i\nx") == "8"
    assert driver.run("def double(n):\n    return 2 * n") == ""
    assert driver.run("double(x)") == "16"
    assert driver.run("None") == ""
    assert driver.run("gcd(4, 6), pow(3, 100, 7), str(Fraction(2, 4))") == "(2, 4, '1/2')"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("nowhere", "NameError: name 'nowhere' is not defined"),
        ("1 +", "SyntaxError: invalid syntax"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("input()", "EOFError: EOF when reading a line"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("[0] * 10**9", "MemoryError"),
        ("raise ValueError('a\\nb')", "b"),
    ],
)
def test_of_an_error_the_last_line_is_told_and_the_state_stays(
    driver: Driver, code: str, error: str
) -> None:
    driver.run("kept = 7")
    assert driver.run(code) == error
    assert driver.run("kept") == "7"


def test_of_much_output_the_head_is_kept(driver: Driver) -> None:
    answer = driver.ask(run="print('x' * 10**7)", timeout_s=20, memory_bytes=MEMORY)
    assert (len(answer["text"]), set(answer["text"]), answer["ended"]) == (1 << 14, {"x"}, False)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("while True: pass", "late ended"),
        ("import time\ntry:\n  time.sleep(99)\nexcept BaseException: pass", "late ended"),
        ("import os; os._exit(0)", "ended"),
        ("import os; os.kill(os.getpid(), 9)", "ended"),
        ("import os\nif os.fork() == 0:\n  while True: pass", "ended"),
        ("import subprocess as s\np = s.Popen(['sleep', '99'])", "ended"),
    ],
)
def test_an_interpreter_that_does_not_come_back_alone_is_replaced(
    driver: Driver, code: str, told: str
) -> None:
    driver.run("kept = 7")
    assert driver.run(code, 1.0 if "late" in told else 20.0) == told
    assert driver.run("kept") == "NameError: name 'kept' is not defined"


def test_an_interpreter_without_its_descriptors_is_replaced(driver: Driver) -> None:
    assert driver.run("import os; os.closerange(3, 300)", 1.0).endswith(" ended")
    assert driver.run("1 + 1") == "2"
    assert driver.run("import os; os.write(199, b'no reply')", 1.0).endswith("late ended")
    assert driver.run("1 + 1") == "2"


def test_an_exception_whose_text_raises_one_is_told_by_its_name(driver: Driver) -> None:
    code = "class Odd(Exception):\n  def __str__(self): raise SystemExit\nraise Odd"
    assert driver.run(code).startswith("Odd")


def test_the_next_episode_has_a_fresh_interpreter(driver: Driver) -> None:
    driver.run("left = 1")
    driver.ask(end=True)
    assert driver.run("left") == "NameError: name 'left' is not defined"


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(max_size=40))
def test_any_text_is_code_that_ends(driver: Driver, text: str) -> None:
    answer = driver.ask(run=text, timeout_s=20.0, memory_bytes=MEMORY)
    assert set(answer) == {"text", "error", "late", "ended"}
