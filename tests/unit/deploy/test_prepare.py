"""What is installed where dpkg cannot say what is there: nothing, for apt might upgrade it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_a_dpkg_that_cannot_be_asked(tmp_path: Path) -> None:
    """The script ends with 1, names the package that it asked for, and has not called apt-get."""
    called = tmp_path / "called"
    for program, body in {"dpkg-query": "exit 2", "apt-get": f"touch {called}; exit 1"}.items():
        file = tmp_path / program
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = ["bash", str(ROOT / "deploy" / "prepare.sh"), "unit"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, called.exists()) == (1, False)
    assert done.stderr == "prepare: dpkg-query, asked for gcc, ended with 2\n"
