"""Style, types, import and house rules: tools that run side by side, each printed once it is done."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

_BIN: Final = Path(sys.executable).parent
CHECKS: Final[Mapping[str, tuple[str, ...]]] = {
    "ruff check": (f"{_BIN}/ruff", "check", "."),
    "ruff format": (f"{_BIN}/ruff", "format", "--check", "-q", "."),
    "mypy": (f"{_BIN}/mypy",),
    "import rules": (f"{_BIN}/lint-imports", "--no-cache"),
    "house rules": (sys.executable, "-m", "tests.lab.house"),
}


def failed() -> tuple[str, ...]:
    """Run them all; the names of those that found something, which is printed."""
    found = []
    with ThreadPoolExecutor(len(CHECKS)) as pool:
        for name, (code, text, seconds) in zip(CHECKS, pool.map(_run, CHECKS.values()), strict=True):
            print(f"{name}: {f'ended with {code}' if code else 'ok'} ({seconds:.0f} s)", flush=True)
            if code:
                print(text, flush=True)
                found.append(name)
    return tuple(found)


def _run(command: tuple[str, ...]) -> tuple[int, str, float]:
    began = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    return done.returncode, done.stdout, time.monotonic() - began
