"""What commands say of a broken node, as docs/troubleshooting.md shows it: compared with what they print, or written again.

A sample is a block of text below a comment `<!-- broken by BREAK: COMMAND -->`. In it `...` stands for any text; lines are broken
where they fit the page. Paths are those of a usual node. Numbers, MACs and UIDs are equal to any others.

    RENEW_SAMPLES=1 tests/run.sh agent tests/agent/test_why.py     writes those of `why` that differ
"""

from __future__ import annotations

import os
import re
import textwrap
from dataclasses import dataclass
from typing import Final

from tests.lab.breaking.breakable_node import BreakableNode
from tests.lab.pages import ROOT

PAGE: Final = ROOT / "docs" / "troubleshooting.md"
COLUMNS: Final = 110
_RENEW: Final = "RENEW_SAMPLES"
_SAMPLE: Final = re.compile(r"<!-- broken by (\w+): userspace-cni ([^\n]+) -->\n```text\n(.*?)```\n", re.DOTALL)
_CUT: Final = "..."
_WELL: Final = " Checked and without a fault: "
_VARIES: Final = (
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UID"),
    (re.compile(r"\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b"), "MAC"),
    (re.compile(r"\d+"), "N"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True)
class BrokenSample:
    """What a command, without its first word, prints on a node that is broken in the way of this name."""

    broken: str
    command: str
    text: str


def broken_samples() -> tuple[BrokenSample, ...]:
    """Those of the page, in its order."""
    return tuple(BrokenSample(*found) for found in _SAMPLE.findall(PAGE.read_text(encoding="utf-8")))


def check_samples(node: BreakableNode, broken: str) -> None:
    """AssertionError if the page shows something else of this break than its commands print on the node."""
    for sample in broken_samples():
        if sample.broken != broken:
            continue
        printed = _usual(node.command(*sample.command.split()).stdout, node)
        if _is_like(sample.text, printed):
            continue
        renewed = _paragraph(printed)
        if not (os.environ.get(_RENEW) and sample.command.startswith("why")):
            raise AssertionError(
                f"{PAGE.name} shows of '{sample.command}', broken by {broken}:\n{sample.text}\nIt prints:\n{renewed}\n"
                f"If that is right, change the page; with {_RENEW}=1 this test writes the samples of why"
            )
        mark = f"<!-- broken by {broken}: userspace-cni {sample.command} -->\n```text\n"
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page.replace(f"{mark}{sample.text}```\n", f"{mark}{renewed}```\n"), encoding="utf-8")


def _usual(text: str, node: BreakableNode) -> str:
    """The text with the directories of a usual node."""
    here = node.live.directory
    for place, usual in {
        f"{here}/state": "/var/lib/cni/userspace",
        f"{here}/run": "/run/userspace-cni",
        f"{here}/short": "/var/lib/vhost_sockets",
        f"{here}/kubelet": "/var/lib/kubelet",
        f"{here}/bin": "/opt/cni/bin",
        f"{here}/network.toml": "/etc/userspace-cni/config.toml",
        str(node.switch.rundir): "/var/run/openvswitch",
    }.items():
        text = text.replace(place, usual)
    return re.sub(r"/tmp/netns-\w+", "/run/netns", text)


def _is_like(sample: str, printed: str) -> bool:
    parts = [re.escape(part.strip()) for part in _normal(sample).split(_CUT)]
    return bool(sample.strip()) and re.fullmatch(r" ?.*".join(parts), _normal(printed).strip()) is not None


def _normal(text: str) -> str:
    for pattern, word in _VARIES:
        text = pattern.sub(word, text)
    return text


def _paragraph(printed: str) -> str:
    """The paragraph up to what is well, in lines for the page."""
    said, cut, _ = printed.strip().partition(_WELL)
    text = f"{said} {_CUT}" if cut else said
    lines = textwrap.wrap(text, COLUMNS, break_long_words=False, break_on_hyphens=False)
    return "".join(f"{line}\n" for line in lines)
