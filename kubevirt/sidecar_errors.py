"""The errors of the sidecar, each with the name by which people and `userspace-cni kubevirt lint` know its reason.

KubevirtError             what was tried and what happened; `remedy`, what to do; `name`, as docs/kubevirt.md has it
├── BadInput              the input is malformed: domain XML, VMI, network-info, DRA metadata
└── Refused               the input is valid, and its VM would not start, or start without its network
"""

from __future__ import annotations


class KubevirtError(Exception):
    """`name` is one of `findings.TRAPS`, `message` says what was tried and happened, `remedy` what to look at or to change."""

    def __init__(self, name: str, message: str, remedy: str) -> None:
        super().__init__(f"{message} ({name}); {remedy}")
        self.name = name
        self.message = message
        self.remedy = remedy


class BadInput(KubevirtError):
    """Input that cannot be read."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__("bad-input", message, remedy)


class DefinitionRefused(KubevirtError):
    """A definition that could not work."""
