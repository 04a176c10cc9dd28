"""Which build of this program runs: its version, the commit and that commit's date. As a program it writes the record of them.

Packaging records them in `build.json` beside this file. A clone has no such file: its version is the one in pyproject.toml, and
git is asked for the commit only where a person wants to know (`ask_git`), never for a verb or by the agent. The module uses the
standard library alone, because the sidecar's image and the build of the package use it, too.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

UNKNOWN: Final = "unknown"
RECORD: Final = Path(__file__).with_name("build.json")
"""Written when a wheel, an archive of the sources or an image is made."""
_ROOT: Final = Path(__file__).parents[2]
_GIT_S: Final = 10.0
_VERSION: Final = re.compile(r'^\[project\]\n(?:(?!\[).*\n)*?version = "([^"]+)"$', re.MULTILINE)
_SUMMARY: Final = re.compile(r"(\S+) \(commit (\S+?)(?: of \S+)?\)")
_DATE_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class ProgramBuild:
    """A build. `commit`: twelve hexadecimal digits, followed by `-dirty` where files differed from the commit; `committed`: the
    commit's date, as 2026-11-28T03:12:11Z. What is not known is "".
    """

    version: str = ""
    commit: str = ""
    committed: str = ""

    @property
    def summary(self) -> str:
        """In one line: `1.2.3 (commit 89dedafb2f1c of 2026-11-28)`."""
        day = f" of {self.committed[:10]}" if self.committed else ""
        return f"{self.version or UNKNOWN} (commit {self.commit or UNKNOWN}{day})"

    def differs(self, other: ProgramBuild) -> bool:
        """Whether they are different builds, as far as both are known."""
        pairs = ((self.version, other.version), (self.commit, other.commit))
        return any(one and another and one != another for one, another in pairs)


def recorded_build() -> ProgramBuild:
    """The build as packaging recorded it; in a clone only its version. Raises nothing."""
    try:
        record = json.loads(RECORD.read_bytes())
        return ProgramBuild(*(str(record.get(key, "")) for key in ("version", "commit", "committed")))
    except (OSError, ValueError, AttributeError):
        return ProgramBuild(_version_in(_ROOT))


def read_summary(text: str) -> ProgramBuild:
    """The build of which this is the summary, without its date; nothing is known of another text."""
    found = _SUMMARY.fullmatch(text)
    return ProgramBuild(*("" if word == UNKNOWN else word for word in found.groups())) if found else ProgramBuild()


def describe_interpreter() -> dict[str, str]:
    """Python's version, and the architecture of the machine."""
    return {"python": platform.python_version(), "architecture": platform.machine()}


def ask_git(root: Path = _ROOT) -> tuple[str, str]:
    """The commit of the clone `root`, and its date. Raises LookupError, which says why it cannot be known."""
    if not (root / ".git").exists():  # git would otherwise answer for a clone that this one lies in
        raise LookupError(f"it was not recorded, and {root} is no clone")
    describe = ("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    return _git(root, *describe), _git(root, "log", "-1", "--format=%cd", f"--date=format-local:{_DATE_FORMAT}")


def _git(root: Path, *arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", "TZ": "UTC"}
    argv = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LookupError(f"asking git in {root}: {error}") from error
    if done.returncode:
        raise LookupError(f"asking git in {root}: {done.stderr.strip().partition(chr(10))[0] or f'exit code {done.returncode}'}")
    return done.stdout.strip()


def _version_in(root: Path) -> str:
    try:
        found = _VERSION.search((root / "pyproject.toml").read_text(encoding="utf-8"))
    except OSError:
        return ""
    return found[1] if found else ""


def main() -> int:
    """Print the record of the sources in the working directory, as `build.json` has it.

    BUILD_COMMIT and BUILD_DATE of the environment win: where an image is made, there is no git.
    """
    root = Path.cwd()
    commit, committed = os.environ.get("BUILD_COMMIT", ""), os.environ.get("BUILD_DATE", "")
    if not commit:
        try:
            commit, committed = ask_git(root)
        except LookupError as error:
            sys.stderr.write(f"program_build: the commit is recorded as unknown: {error}\n")
    sys.stdout.write(json.dumps(asdict(ProgramBuild(_version_in(root), commit, committed))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
