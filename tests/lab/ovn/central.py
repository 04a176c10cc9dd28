"""OVN on a private switch: its two databases, northd, and a controller for the switch's chassis."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Final

from tests.lab.ovn.started import Started
from tests.lab.switch.switch import CTL_SECONDS, Switch, wait_until

CHASSIS: Final = "lab"
INTEGRATION: Final = "br-int"
SCHEMAS: Final = Path("/usr/share/ovn")
_DAEMON: Final = ("--detach", "--no-chdir", "-vconsole:off", "-vsyslog:off")
_KEYS: Final = ("system-id", "ovn-remote", "ovn-encap-type", "ovn-encap-ip", "ovn-bridge-datapath-type")


def version() -> str:
    """OVN's version, as ovn-controller prints it: 23.03.1."""
    told = subprocess.run(["ovn-controller", "--version"], capture_output=True, text=True, check=True).stdout
    return told.splitlines()[0].split()[-1]


class Ovn(Started):
    """OVN below `directory`, whose path is short, with `switch` as its only chassis; entering it starts it."""

    def __init__(self, switch: Switch, directory: Path) -> None:
        self._switch = switch
        self._dir = directory
        self._environment = os.environ | {"OVS_RUNDIR": switch.rundir, "OVN_RUNDIR": str(directory)}
        self._started: list[str] = []

    @property
    def rundir(self) -> str:
        """Where ovn-controller has its control socket (its OVN_RUNDIR)."""
        return str(self._dir)

    def begin(self) -> None:
        for database in ("nb", "sb"):
            file = self._dir / f"{database}.db"
            self._run("ovsdb-tool", "create", str(file), str(SCHEMAS / f"ovn-{database}.ovsschema"))
            control = f"--unixctl={self._dir}/{database}.ctl"  # else it is in the switch's directory
            self._start(database, "ovsdb-server", f"--remote=p{self.remote(database)}", control, str(file))
        self._start("northd", "ovn-northd", f"--ovnnb-db={self.remote('nb')}", f"--ovnsb-db={self.remote('sb')}")
        values = (CHASSIS, self.remote("sb"), "geneve", "127.0.0.1", "netdev")
        ids = [f'external_ids:{key}="{value}"' for key, value in zip(_KEYS, values, strict=True)]
        self._switch.vsctl("--no-wait", "set", "Open_vSwitch", ".", *ids)
        self._start("controller", "ovn-controller", self._switch.ovsdb)
        self._switch.others.add(INTEGRATION)  # it takes seconds to connect to a bridge that was deleted under it and made anew

    def stop(self) -> None:
        """End what was started, the last first."""
        self._switch.others.discard(INTEGRATION)
        while self._started:
            file = self._dir / f"{self._started.pop()}.pid"
            os.kill(int(file.read_text()), signal.SIGTERM)
            wait_until(lambda file=file: not file.exists(), what=f"the end of the daemon of {file}")  # type: ignore[misc]
        self._switch.vsctl("--no-wait", "remove", "Open_vSwitch", ".", "external_ids", *_KEYS)

    def nbctl(self, *args: str) -> str:
        """Output of ovn-nbctl; RuntimeError has its stderr."""
        return self._run("ovn-nbctl", f"--db={self.remote('nb')}", f"--timeout={CTL_SECONDS}", *args)

    def sbctl(self, *args: str) -> str:
        """Output of ovn-sbctl; RuntimeError has its stderr."""
        return self._run("ovn-sbctl", f"--db={self.remote('sb')}", f"--timeout={CTL_SECONDS}", *args)

    def control(self, *args: str) -> str:
        """ovn-controller's answer over its control socket."""
        pid = (self._dir / "controller.pid").read_text().strip()
        return self._run("ovs-appctl", f"--target={self._dir}/ovn-controller.{pid}.ctl", *args)

    def remote(self, database: str) -> str:
        """Where a database is, "nb" or "sb"."""
        return f"unix:{self._dir}/{database}.sock"

    def _start(self, name: str, program: str, *args: str) -> None:
        files = (f"--pidfile={self._dir}/{name}.pid", f"--log-file={self._dir}/{name}.log")
        self._run(program, *_DAEMON, *files, *args)
        self._started.append(name)

    def _run(self, *argv: str) -> str:
        done = subprocess.run(argv, env=self._environment, capture_output=True, text=True, timeout=2 * CTL_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout.rstrip("\n")
