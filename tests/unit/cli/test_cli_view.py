"""How output is shown: complete in a pipe and on a terminal of any width, without control sequences from outside."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from rich.panel import Panel
from rich.table import Table

from deploy import demo_node, demo_run
from userspace_cni.cli import view
from userspace_cni.cli.view import Cell

PROGRAM = """
from userspace_cni.cli import view
from userspace_cni.cli.view import Cell
with view.progress("looking") as tell:
    tell("at [something] 62:cd:b7:ab [/] :bell:")
columns = ["POD", "NETWORK", "TYPE", "STATE"]
view.show_table(columns, [["default/web", "blue", "dpdkvhostuserclient", Cell("ready", "green")]])
view.show_path([("pod", ["default/web", "second line"]), ("bridge", ["br0"])])
"""


def on_terminal(columns: int, program: str = PROGRAM) -> str:
    """What a program shows on a terminal of that many columns, stderr included."""
    ours, theirs = pty.openpty()
    # COLUMNS, because the size of a terminal made here is 0
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LC_ALL": "C.UTF-8"}
    process = subprocess.Popen([sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # EIO: the other end is closed
        while chunk := os.read(ours, 65536):
            shown += chunk
    os.close(ours)
    assert process.wait(60) == 0, shown
    return shown.decode()


def piped(**environ: str) -> subprocess.CompletedProcess[bytes]:
    """The output of PROGRAM when no stream is a terminal."""
    return subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, **environ}, capture_output=True, check=True)


def test_a_pipe_gets_lines_without_colours() -> None:
    """Each row is one line, without blanks at its end, escape sequences or progress."""
    done = piped(LC_ALL="C.UTF-8")
    assert done.stderr == b""
    lines = done.stdout.decode().splitlines()
    assert lines[:2] == ["POD          NETWORK  TYPE                 STATE", "default/web  blue     dpdkvhostuserclient  ready"]
    assert lines[2:] == ["  ╷  pod     default/web", "  │          second line", "  ╰  bridge  br0"]


def test_ascii_where_nothing_else_is_shown() -> None:
    """Without UTF-8 the path is drawn in ASCII."""
    done = piped(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii")
    assert done.stdout.isascii()
    assert done.stdout.decode().splitlines()[2:] == ["  +  pod     default/web", "  |          second line", "  +  bridge  br0"]


def test_a_wide_terminal_gets_every_column() -> None:
    """A wide terminal shows all columns, and progress."""
    shown = on_terminal(200)
    assert "dpdkvhostuserclient" in shown
    assert "blue" in shown
    assert "at [something] 62:cd:b7:ab [/] :bell:" in shown
    assert "\x1b[" in shown


HEADINGS = ("POD", "NETWORK", "PORT", "DETAILS")
POD = "a-namespace-of-many-words/" + "web-" * 12 + "1"
SENTENCE = (
    "no application has connected to /var/lib/userspace-cni/shared/" + "0123456789abcdef" * 3 + "/net1.sock since it was made"
)
WIDTHS = (40, 80, 120)


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_table_keeps_its_columns_and_its_words(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However narrow the terminal is, each row is one line with every column, and each name is whole: it runs over the edge."""
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [[POD, "blue", "c0ffee012345-net1", "ready !"], ["default/b", "-", "-", "ready"]]
    view.show_table(HEADINGS, rows)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [list(HEADINGS), *(" ".join(row).split() for row in rows)]


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_last_column_is_folded_between_words(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sentence at the end of a row goes on below itself: a line is longer than the terminal for a single word at most."""
    monkeypatch.setenv("COLUMNS", str(columns))
    view.show_table(("WHAT", "DETAILS"), [["port", SENTENCE]])
    view.show_facts([("port", SENTENCE)])
    view.show_path([("port", [SENTENCE])])
    view.say("  ", SENTENCE)
    heading, *lines = capsys.readouterr().out.splitlines()
    words = [line.split() for line in lines]
    assert [word for line in words for word in line if word not in ("port", "\u2570", "\u2577")] == SENTENCE.split() * 4
    starts = [line.index(text) for text in ("no application",) for line in lines if text in line]
    assert len(starts) == 4
    assert {len(line) - len(line.lstrip()) for line in lines if not line.lstrip().startswith(("port", "no", "\u2577"))} <= set(
        starts
    )
    assert [line for line in lines if len(line) > columns and len(line.split()) > 1] == []
    assert heading.split() == ["WHAT", "DETAILS"]


def test_a_last_column_without_room_runs_over_the_edge(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where hardly a word would fit beside the other columns nothing is folded."""
    monkeypatch.setenv("COLUMNS", "40")
    view.show_table(HEADINGS, [[POD, "blue", "net1", SENTENCE]])
    assert capsys.readouterr().out.splitlines()[1].endswith(SENTENCE)


def test_columns_of_another_option_are_named() -> None:
    """A terminal is told which columns an option adds; a pipe is not, nor is anything said where none is missing."""
    program = "from userspace_cni.cli import view; view.note_left_out(['VLAN', 'AGE'], '-o wide'); view.note_left_out([], '-o x')"
    assert on_terminal(80, program).splitlines() == ["not shown: VLAN, AGE; -o wide shows them"]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_pipe_gets_long_progress() -> None:
    """Without a terminal an action of more than a second is shown on stderr, once at first, with its newest text."""
    program = """
import sys, threading
from userspace_cni.cli import view
with view.progress("looking") as tell:
    tell("at :cd: [red]")
    sys.stdin.readline()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stderr
        told = process.stderr.readline()
        process.stdin.close()
        assert process.stderr.read() == ""
    assert re.match(r"at :cd: \[red\] \(for [0-9.]+ s, since ", told)


def test_a_signal_ends_what_lasts_without_a_terminal() -> None:
    """The thread of the progress blocks signals: Ctrl-C ends the command at once."""
    program = """
import threading
from userspace_cni.cli import view
with view.progress("looking"):
    threading.Event().wait(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert process.stderr.readline().startswith("looking (")
        [teller] = [task for task in Path(f"/proc/{process.pid}/task").iterdir() if task.name != str(process.pid)]
        status = (teller / "status").read_text()
        assert int(re.findall(r"SigBlk:\s+(\w+)", status)[0], 16) & 1 << signal.SIGINT - 1
        process.send_signal(signal.SIGINT)
        process.wait(60)
        assert "KeyboardInterrupt" in process.stderr.read()


@pytest.mark.parametrize("text", ["62:cd:b7:ab:00:01", ":cd:", "pod-:ab:", "[red]", "[/]", "[/red]x", ":bell:[bold]"])
def test_addresses_and_names_are_what_they_are(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`:cd:` in a MAC address is no emoji, and brackets in a name are no markup, whatever shows it."""
    view.say(Cell(text, "bold"), text)
    view.show_facts([("MAC", text)])
    view.show_table(["MAC", text], [[text, Cell(text, "green")]])
    view.show_path([(text, [text]), ("bridge", [text])])
    view.say_figures([(text, text)])
    view.show_bars([view.Bar(text, 0.5, (text,))])
    shown = capsys.readouterr().out
    assert shown.count(text) == 2 + 1 + 3 + 3 + 2 + 2
    assert "\N{OPTICAL DISC}" not in shown


@pytest.mark.parametrize("text", ["46:cd:b7:ab:00:01", "pod-[red]", "a [/] b"])
def test_addresses_in_the_demo(text: str) -> None:
    """The demo shows them as they are, too: in its tables, panels and lines."""
    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    with demo_node.console.capture() as captured:
        demo_run.tell_line(f"{text}: ", (text, "green"))
        demo_run.show_prompt(text, text)
        demo_run.tell_end(text)
        demo_node.console.print(Panel(text))
        demo_node.console.print(table)
    assert captured.get().count(text) == 2 + 2 + 1 + 1 + 3


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nb", "\udcff", "\x07", "[bold]x[/bold]", "\u202ex"])
def test_text_from_outside_is_only_text(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters and undecodable bytes are escaped, and markup is printed as it is."""
    view.say(Cell(text))
    view.show_table(["A"], [[text]])
    view.note(text)
    shown = capsys.readouterr()
    for line in [*shown.out.splitlines(), *shown.err.splitlines()]:
        assert line in ("A", view.plain(text))
        assert line.isprintable()


def test_what_stdout_cannot_encode_is_spelled_out() -> None:
    """A name beyond ASCII is escaped on an ASCII output."""
    program = "from userspace_cni.cli import view; view.say('pod \\u00e4')"
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, check=True)
    assert done.stdout == b"pod \\xe4\n"


def test_facts_without_a_value_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty value is no fact."""
    view.show_facts([("MAC", "02:00"), ("VLAN", ""), ("MTU", Cell("1500"))])
    assert capsys.readouterr().out.splitlines() == ["  MAC  02:00", "  MTU  1500"]


@pytest.mark.parametrize(("number", "shown"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps")])
def test_counted(number: int, shown: str) -> None:
    """One has the singular."""
    assert view.format_count(number, "step") == shown


def test_a_terminal_gets_no_blanks_at_the_end_of_a_line() -> None:
    """What fills a table's lines is not shown there either, whatever colours are before it."""
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in on_terminal(100).splitlines()]
    assert len(lines) >= 5
    assert [line for line in lines if line != line.rstrip(" ")] == []


def test_figures_are_not_folded(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line has as many figures as fit, each with its unit."""
    monkeypatch.setenv("COLUMNS", "41")
    view.say_figures([(name, "1.60 us") for name in ("min", "p50", "p90", "p99", "max")])
    figure = "{} 1.60 us".format
    lines = [["min", "p50", "p90"], ["p99", "max"]]
    assert capsys.readouterr().out.splitlines() == ["  " + "   ".join(map(figure, line)) for line in lines]
