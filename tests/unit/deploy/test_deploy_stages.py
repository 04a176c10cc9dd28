"""How scripts report their stages."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def script(directory: Path, body: str) -> subprocess.CompletedProcess[str]:
    path = directory / "prepare.sh"
    path.write_text(f"set -euo pipefail\nsource {ROOT}/deploy/stages.sh\n{body}")
    return subprocess.run(["bash", str(path)], capture_output=True, text=True, timeout=60, check=False)


def test_a_line_as_a_stage_begins_and_one_with_its_seconds(tmp_path: Path) -> None:
    """Each stage has two lines on stderr, in order; stdout is the script's own."""
    done = script(tmp_path, 'stage "making a"\nprintf a\nstage "making b"\nprintf b\nstage_over\nprintf c\n')
    assert (done.returncode, done.stdout) == (0, "abc")
    assert [re.sub(r"\d+ s", "N s", line) for line in done.stderr.splitlines()] == [
        "prepare: making a ...",
        "prepare: making a: done in N s",
        "prepare: making b ...",
        "prepare: making b: done in N s",
    ]


def test_a_script_that_fails_amid_a_stage(tmp_path: Path) -> None:
    """The script names the stage in which it failed, and its exit code is unchanged."""
    done = script(tmp_path, 'stage "making a"\nstage "making b"\n(exit 7)\nstage "making c"\n')
    assert done.returncode == 7
    assert re.fullmatch(r"prepare: making b: ended after \d+ s, unfinished", done.stderr.splitlines()[-1])


FOLLOWED = """
of() {{ text="at $1"; touch {place}/$1; }}
work() {{
    echo first >&3
    echo second >&3
    until [[ -e {place}/second ]]; do sleep 0.02; done
    echo "of the command"
    {last}
}}
followed of work
echo "after it"
"""


def test_what_a_command_does_is_printed_meanwhile(tmp_path: Path) -> None:
    """Without a terminal a line says what is done and since when; the command's own output and exit code stay its own."""
    done = script(tmp_path, "STAGE_EVERY_S=0\n" + FOLLOWED.format(place=tmp_path, last=":"))
    assert (done.returncode, done.stdout) == (0, "of the command\nafter it\n")
    assert re.fullmatch(r"prepare: at first \(\d+ s so far\)", done.stderr.splitlines()[0])
    failed = script(tmp_path, FOLLOWED.format(place=tmp_path, last="return 7"))
    assert (failed.returncode, failed.stdout) == (7, "of the command\n")


def test_a_short_command_prints_nothing(tmp_path: Path) -> None:
    """In a log there is no line before ten seconds."""
    assert script(tmp_path, FOLLOWED.format(place=tmp_path, last=":")).stderr == ""


def test_what_a_command_leaves_running(tmp_path: Path) -> None:
    """A process that keeps the descriptor does not keep the script."""
    done = script(tmp_path, FOLLOWED.format(place=tmp_path, last=f"setsid sleep 300 <&- >&- 2>&- & echo $! > {tmp_path}/left"))
    os.kill(int((tmp_path / "left").read_text()), 9)
    assert (done.returncode, done.stdout) == (0, "of the command\nafter it\n")


def read_to_end(terminal: int) -> str:
    """All that was written: one read may return a part, and the end is an error (EIO)."""
    read = b""
    with suppress(OSError):
        while part := os.read(terminal, 65536):
            read += part
    return read.decode()


def test_on_a_terminal(tmp_path: Path) -> None:
    """One line is written over and over, and is gone at the end."""
    path = tmp_path / "prepare.sh"
    path.write_text(f"set -euo pipefail\nsource {ROOT}/deploy/stages.sh\n{FOLLOWED.format(place=tmp_path, last=':')}")
    ours, theirs = pty.openpty()
    done = subprocess.run(
        ["bash", str(path)], stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"}, check=True
    )
    os.close(theirs)
    shown = read_to_end(ours)
    os.close(ours)
    assert done.stdout == b"of the command\nafter it\n"
    assert re.match(r"\r\x1b\[Kprepare: at first \(\d+ s so far\)", shown)
    assert shown.endswith("\r\x1b[K")
    assert "\n" not in shown
