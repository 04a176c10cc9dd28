"""How scripts report their stages."""

from __future__ import annotations

import re
import subprocess
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
