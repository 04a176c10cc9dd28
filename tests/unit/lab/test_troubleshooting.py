"""docs/troubleshooting.md: what it quotes is what the program says, and what leads to it arrives."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

import yaml

from tests.lab.breaking.every_break import EVERY_BREAK
from tests.lab.breaking.page_samples import PAGE, broken_samples
from tests.lab.pages import ROOT, headings
from userspace_cni.diagnosis.why.causes import EXPLAINS

_RULES: Final = ROOT / "deploy" / "dashboards" / "rules.yml"
_SPAN: Final = re.compile(r"`([^`]+)`")
_OTHERS: Final = {
    'failed to find plugin "userspace" in path',
    "failed to bind … Address already in use",
    "Address family not supported by protocol",
    "could not open network device",
    "Unknown error -1",
    "Progressing",
}
"""What other programs say: the runtime, DPDK, Open vSwitch, and the controller in a status."""


@cache
def said() -> str:
    """All texts of the product, of shim and sidecar, one a line; `…` where a value comes in."""
    texts: list[str] = []
    for source in sorted([*(ROOT / "userspace_cni").rglob("*.py"), *(ROOT / "kubevirt").rglob("*.py")]):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                texts.append("".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values))
    texts.append((ROOT / "userspace_cni/shim/shim.c").read_text(encoding="utf-8").replace("%s", "…"))
    return "\n".join(" ".join(text.split()) for text in texts)


def literals(node: ast.expr) -> list[str]:
    """The texts that an expression may be, as far as they stand there."""
    if isinstance(node, ast.IfExp):
        return [*literals(node.body), *literals(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def names_of_findings() -> set[str]:
    """Those that the sources of diagnosis and OVN make, those that explain others, and those of the table of breaks."""
    found = {each.finding for each in EVERY_BREAK} | {name for name in EXPLAINS if not name.endswith("-")}
    rooms = ("diagnosis/why", "diagnosis", "ovn", "ovn/services")
    sources = [source for room in rooms for source in (ROOT / "userspace_cni" / room).glob("*.py")]
    for source in (*sources, ROOT / "userspace_cni/switch/ovn_installation.py"):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).rpartition(".")[2] in ("Finding", "found"):
                found |= set(literals(node.args[0]))
    return found


def test_each_finding_has_its_line() -> None:
    """Each name of a finding is in the table of findings, once."""
    listed = [span for cell in tables("Names") for span in _SPAN.findall(cell)]
    assert len(listed) == len(set(listed))
    assert names_of_findings() - set(listed) == set()
    assert {name for name in listed if name not in said() and name not in names_of_findings()} == set()


def tables(heading: str) -> list[str]:
    """The first cells of the tables whose first column has this heading."""
    cells: list[str] = []
    inside = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"| {heading} |"):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|--"):
            cells.append(line.split(" | ")[0].removeprefix("| "))
    return cells


def quoted(heading: str) -> set[str]:
    return {span for cell in tables(heading) for span in _SPAN.findall(cell)} - _OTHERS


def is_said(quotation: str) -> bool:
    """Whether the program has a text with this in it, whatever stands for `…` in either."""
    parts = [re.escape(part.strip()) for part in quotation.split("…") if part.strip()]
    return bool(parts) and re.search(".{0,80}?".join(parts), said(), re.IGNORECASE) is not None


def test_texts_are_the_programs_own() -> None:
    """Each text in the columns "It says" and "Text" is one that the program has."""
    for heading in ("It says", "Text"):
        found = quoted(heading)
        assert len(found) > 20
        assert {each for each in found if not is_said(each)} == set()
    assert not is_said("a text that no program has")


def test_samples_are_of_breaks_that_there_are() -> None:
    """Each sample names a way to break a node that tests/agent/test_why.py makes, whose pod its command asks about."""
    breaks = {each.name: each for each in EVERY_BREAK}
    samples = broken_samples()
    assert len(samples) == PAGE.read_text(encoding="utf-8").count("<!-- broken by ")
    for sample in samples:
        broken = breaks[sample.broken]
        assert sample.command in (f"why {broken.asks or broken.kind}", "status", "check")
        assert sample.text.strip()


def test_alerts_lead_to_their_sections() -> None:
    """Each alert links to a heading of the page, whose section begins with the alert's name; no section is of another alert."""
    page = PAGE.read_text(encoding="utf-8")
    rules = [rule for group in yaml.safe_load(_RULES.read_text())["groups"] for rule in group["rules"]]
    known = headings(PAGE)
    for rule in rules:
        place, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert place.endswith(str(Path("docs") / PAGE.name))
        assert f"### {known[anchor]}\n\n`{rule['alert']}`:" in page
    assert set(re.findall(r"^`(UserspaceCni\w+)`:", page, re.MULTILINE)) == {rule["alert"] for rule in rules}
