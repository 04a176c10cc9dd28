"""The user as which a process runs, from the kernel's text about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_DAC_OVERRIDE: Final = 1 << 1
_IPC_LOCK: Final = 1 << 14


@dataclass(frozen=True)
class ProcessUser:
    """Effective user, all groups, and effective capabilities of a process."""

    uid: int
    groups: frozenset[int]
    capabilities: int

    @property
    def overrides_modes(self) -> bool:
        """Whether it may open files whatever their modes say."""
        return self.uid == 0 or bool(self.capabilities & _DAC_OVERRIDE)

    @property
    def locks_freely(self) -> bool:
        """Whether RLIMIT_MEMLOCK does not bind it."""
        return bool(self.capabilities & _IPC_LOCK)


def read_user(status: str) -> ProcessUser | None:
    """Read the text of /proc/PID/status; None for another text."""
    lines = dict(line.partition(":")[::2] for line in status.splitlines())
    try:
        ids = [int(lines[name].split()[3]) for name in ("Uid", "Gid")]
        groups = {int(group) for group in lines.get("Groups", "").split()}
        return ProcessUser(ids[0], frozenset({ids[1], *groups}), int(lines.get("CapEff", "0").strip() or "0", 16))
    except (KeyError, IndexError, ValueError):
        return None
