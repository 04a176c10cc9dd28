"""A node's OVSDB without ovs-vswitchd: for what is written into Open_vSwitch, which OVN's programs read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.lab.ovn.started import Server, run_program
from tests.lab.switch.switch import CTL_SECONDS, listens, wait_until

_SCHEMA: Final = "/usr/share/openvswitch/vswitch.ovsschema"


class SwitchDatabase(Server):
    """It is served below `directory`, whose path is short."""

    def __init__(self, directory: Path) -> None:
        self._dir = directory

    def begin(self) -> None:
        run_program("ovsdb-tool", "create", f"{self._dir}/switch.db", _SCHEMA)
        files = (f"--unixctl={self._dir}/switch.ctl", f"--remote=p{self.remote}", f"{self._dir}/switch.db")
        self._process = subprocess.Popen(["ovsdb-server", "--no-chdir", "-vconsole:off", "-vsyslog:off", *files])
        wait_until(lambda: listens(self.remote.removeprefix("unix:")), what="it listens")
        self.vsctl("init")

    @property
    def remote(self) -> str:
        return f"unix:{self._dir}/switch.sock"

    @property
    def ids(self) -> dict[str, str]:
        """Open_vSwitch.external_ids."""
        said = json.loads(self.vsctl("--format=json", "--columns=external_ids", "list", "Open_vSwitch"))
        return dict(said["data"][0][0][1])

    def write_ids(self, ids: Mapping[str, str]) -> None:
        """Set these keys of it; no value is read as a map or a set."""
        self.vsctl("set", "Open_vSwitch", ".", *(f"external_ids:{key}={json.dumps(value)}" for key, value in ids.items()))

    def vsctl(self, *args: str) -> str:
        return run_program("ovs-vsctl", f"--db={self.remote}", "--no-wait", f"--timeout={CTL_SECONDS}", *args)
