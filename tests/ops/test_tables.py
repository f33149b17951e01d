import os
from io import StringIO
from pathlib import Path

import pytest

from agentrl.ops.tables import console, lasting_console, plain, print_line


@pytest.mark.parametrize("reader", ["of a pipe", "of a terminal"])
def test_a_process_goes_on_when_the_reader_of_its_lines_is_gone(reader: str) -> None:
    read_from, write_to = os.pipe() if reader == "of a pipe" else os.openpty()
    with os.fdopen(write_to, "w", buffering=1) as stream:
        console = lasting_console(stream)
        print_line(console, "read")
        assert os.read(read_from, 100).split() == [b"read"]
        os.close(read_from)
        for _ in range(3):
            print_line(console, "lost")
        with pytest.raises(OSError, match=r"Broken pipe|Input/output error"):
            print("lost", file=stream)
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), write_to)  # closing the stream writes what it still holds


def test_a_line_is_printed_as_it_is_but_steers_no_terminal() -> None:
    stream = StringIO()
    print_line(lasting_console(stream), f"[b]kg:on:1 \x1b[2J {'long ' * 100}end\nit")
    assert stream.getvalue() == f"[b]kg:on:1 �[2J {'long ' * 100}end\nit\n"


@pytest.mark.parametrize("text", ["12\xa0000 €", "你好\u3000世界", "👩\u200d💻 می\u200cخواهم"])
def test_what_steers_nothing_is_printed(text: str) -> None:
    stream = StringIO()
    print_line(lasting_console(stream), f"{text}\u202e")
    assert stream.getvalue() == f"{text}�\n"


def test_a_table_shows_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = plain("group")
    table.add_row("kg:on:1")
    console().print(table)
    assert capsys.readouterr().out.split() == ["group", "kg:on:1"]
