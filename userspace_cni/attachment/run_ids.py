"""Names of runs of commands: a name tells which process it is, so that any later one sees whether the run lives."""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from typing import Final, Self

from userspace_cni.linux.boot import boot_id
from userspace_cni.linux.processes import pid_namespace, start_time

PREFIX: Final = "probe-"
"""What the names of a run's directory, ports and temporary bridges begin with."""
_NAME: Final = re.compile(r"([0-9a-f]{1,7})\.([0-9a-f]{1,12})\.([0-9a-f]{6})\.([0-9a-f]{4})\.([0-9a-f]{8})")


@dataclass(frozen=True)
class RunId:
    """One run of a command. `started`: in clock ticks since boot, of process `pid`. `boot` and `namespace`: the beginning of the
    boot's id, the end of the PID namespace's inode. `number`: random, 8 hex digits."""

    pid: int
    started: int
    boot: str
    namespace: str
    number: str

    @classmethod
    def new(cls) -> Self:
        pid = os.getpid()
        return cls(pid, start_time(pid), _boot(), _namespace(), secrets.token_hex(4))

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The run of that name; None when `name` is not a run's."""
        match = _NAME.fullmatch(name)
        return cls(int(match[1], 16), int(match[2], 16), match[3], match[4], match[5]) if match else None

    @property
    def name(self) -> str:
        """The run's name, in its record, in the marks of its ports and in its directory's name."""
        return f"{self.pid:x}.{self.started:x}.{self.boot}.{self.namespace}.{self.number}"

    @property
    def is_dead(self) -> bool:
        """Whether its process is proven to have ended; one of another PID namespace is not seen here."""
        if self.boot != _boot():
            return True
        return self.namespace == _namespace() and start_time(self.pid) != self.started


def _boot() -> str:
    return boot_id()[:6]


def _namespace() -> str:
    return f"{pid_namespace() & 0xFFFF:04x}"
