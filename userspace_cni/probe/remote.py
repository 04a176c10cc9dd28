"""Where the switch is, in the words of its own commands: a hint must work as it is pasted, wherever the settings say it is."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from userspace_cni.base.settings import Settings


@dataclass(frozen=True)
class Remote:
    """Where the switch is, in commands that can be pasted. `ovsdb`, `rundir`: as this process sees them."""

    ovsdb: str
    rundir: str

    @classmethod
    def of(cls, settings: Settings, seen: Callable[[str], str]) -> Remote:
        """That of the settings; `seen` gives a path of theirs as this process reaches it."""
        kind, _, place = settings.ovsdb.partition(":")
        ovsdb = f"unix:{seen(place)}" if kind == "unix" else settings.ovsdb
        return cls(ovsdb, seen(settings.ovs_rundir))

    def vsctl(self, *words: str) -> str:
        """A command of ovs-vsctl(8)."""
        return shlex.join(["ovs-vsctl", f"--db={self.ovsdb}", *words])

    def flows(self, bridge: str) -> str:
        """The command that tells the flows of a bridge."""
        return shlex.join(["ovs-ofctl", "dump-flows", f"unix:{self.rundir}/{bridge}.mgmt"])
