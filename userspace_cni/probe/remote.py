"""Commands for the switch that an error advises: they must work when they are pasted, wherever the settings say the switch is."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from userspace_cni.base.settings import Settings


@dataclass(frozen=True)
class Remote:
    """Where the switch is, for commands. `ovsdb`, `rundir`: as this process sees them."""

    ovsdb: str
    rundir: str

    @classmethod
    def of(cls, settings: Settings, seen: Callable[[str], str]) -> Remote:
        """The remote of the settings; `seen` translates a path of theirs to the one by which this process reaches it."""
        kind, _, place = settings.ovsdb.partition(":")
        ovsdb = f"unix:{seen(place)}" if kind == "unix" else settings.ovsdb
        return cls(ovsdb, seen(settings.ovs_rundir))

    def vsctl(self, *words: str) -> str:
        """A command of ovs-vsctl(8)."""
        return shlex.join(["ovs-vsctl", f"--db={self.ovsdb}", *words])

    def flows(self, bridge: str) -> str:
        return shlex.join(["ovs-ofctl", "dump-flows", f"unix:{self.rundir}/{bridge}.mgmt"])
