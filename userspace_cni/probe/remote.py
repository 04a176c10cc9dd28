"""Where the switch is, in the words of its own commands: a hint must work as it is pasted, wherever the settings say it is."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from userspace_cni.cli.site import Site


@dataclass(frozen=True)
class Remote:
    """Where the switch is, in commands that can be pasted. `ovsdb`, `rundir`: as this process sees them."""

    ovsdb: str
    rundir: str

    @classmethod
    def of(cls, site: Site) -> Remote:
        """That of the settings in force."""
        kind, _, place = site.settings.ovsdb.partition(":")
        ovsdb = f"unix:{site.seen(place)}" if kind == "unix" else site.settings.ovsdb
        return cls(ovsdb, site.seen(site.settings.ovs_rundir))

    def vsctl(self, *words: str) -> str:
        """A command of ovs-vsctl(8)."""
        return shlex.join(["ovs-vsctl", f"--db={self.ovsdb}", *words])

    def flows(self, bridge: str) -> str:
        """The command that tells the flows of a bridge."""
        return shlex.join(["ovs-ofctl", "dump-flows", f"unix:{self.rundir}/{bridge}.mgmt"])
