"""Which of Kubernetes' cases of networks are left out, and which fail, with what reason: `cases.toml`."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from xml.etree import ElementTree as ET

FILE: Final = Path(__file__).with_name("cases.toml")
GROUP: Final = "[sig-network] "
"""Before the names of all cases of networks."""
REPORT: Final = "junit_01.xml"
PASSED, FAILED, SKIPPED, LEFT_OUT = "passed", "failed", "skipped", "left out"


class CasesDiffer(Exception):
    """The list names a case twice, or one that the program does not have."""


@dataclass(frozen=True)
class Result:
    """What became of a case: one of the four words above, why, and how long it took."""

    name: str
    result: str
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class CaseList:
    """Case -> the reason for which it does not run, and for which it is known to fail."""

    left_out: Mapping[str, str]
    fails: Mapping[str, str]

    def choose(self, known: Iterable[str]) -> list[str]:
        """The cases that run, of those that the program has. Raises CasesDiffer."""
        names = sorted(known)
        if unknown := sorted({*self.left_out, *self.fails} - set(names)):
            raise CasesDiffer(f"{FILE} names what the program does not have: {', '.join(unknown)}")
        return [name for name in names if name not in self.left_out]

    def explain(self, result: Result) -> Result:
        """The result with the list's reason, if it fails as the list says."""
        known = result.result == FAILED and result.name in self.fails
        return replace(result, reason=self.fails[result.name]) if known else result

    def is_expected(self, result: Result) -> bool:
        """Whether a case passed, or failed where the list says so. One that passes there is to be taken from the list."""
        return result.result == (FAILED if result.name in self.fails else PASSED)


def read_list(path: Path = FILE) -> CaseList:
    """The list. Raises CasesDiffer."""
    document = tomllib.loads(path.read_text())
    found: dict[str, dict[str, str]] = {"left_out": {}, "fails": {}}
    for kind, reasons in found.items():
        for group in document.get(kind, ()):
            for name in group["cases"]:
                if any(name in each for each in found.values()):
                    raise CasesDiffer(f"{path} names twice: {name}")
                reasons[name] = group["reason"]
    return CaseList(**found)


def list_cases(program: Path) -> list[str]:
    """The names of all cases of networks that the program has, without GROUP."""
    with TemporaryDirectory() as directory:
        argv = [str(program), "--ginkgo.dryRun", "--provider=skeleton", "--kubeconfig=/dev/null", f"--report-dir={directory}"]
        subprocess.run(argv, cwd=directory, capture_output=True, check=True)
        tree = ET.parse(Path(directory) / REPORT)
    names = [each.get("name", "") for each in tree.iter("testcase")]
    return [name.removeprefix(GROUP) for name in names if name.startswith(GROUP)]


def focus(name: str) -> str:
    """The regular expression, in Go's syntax, that matches this case alone."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", f"{GROUP}{name}") + "$"


def read_report(name: str, directory: Path) -> Result:
    """What the report in `directory` says of the case; FAILED where there is none."""
    path = directory / REPORT
    if not path.exists():
        return Result(name, FAILED, "the program has ended without a report")
    for case in ET.parse(path).iter("testcase"):
        if case.get("name") != GROUP + name:
            continue
        seconds = float(case.get("time", 0))
        failure, skipped = case.find("failure"), case.find("skipped")
        if failure is not None:
            return Result(name, FAILED, reason_of(failure.text or ""), seconds)
        if skipped is not None:
            return Result(name, SKIPPED, reason_of(skipped.text or skipped.get("message") or ""), seconds)
        return Result(name, PASSED, "", seconds)
    return Result(name, FAILED, "the report does not name the case")


def reason_of(text: str) -> str:
    """What a failure says, without places in sources and times."""
    lines = [re.sub(r"^\w{3} +\d+ [\d:.]+: ", "", line.strip()) for line in text.splitlines()]
    told = [line for line in lines if line and not re.match(r"(/|k8s\.io/|_output/|vendor/|test/e2e)\S+\.go:\d+$", line)]
    return " ".join(told)
