"""What goes wrong with vhost-user under KubeVirt, by name: the vocabulary of sidecar, lint and doctor. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing found. `where`: file and object, or what on the node; `remedy`: what to do about it, in one sentence."""

    name: str
    severity: Severity
    where: str
    message: str
    remedy: str


TRAPS: Final[Mapping[str, str]] = {
    "bad-input": "what KubeVirt, Kubernetes or a file gave can not be read",
}
"""Name of each trap -> what happens to a VM that falls into it, in half a sentence. docs/kubevirt.md lists them all."""
