"""A switch for tests that stop, kill and restart it: it is lent to one after the other, while it is unchanged.

A start takes a second and 1 GiB of hugepages. Whether a used switch is as good as a new one is not assumed: its database, network
namespace and directory are compared with what they had at the start, and a switch that differs is replaced.
"""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import suppress
from typing import Final

from tests.lab.processes import is_stopped, runs
from tests.lab.switch.switch import CTL_SECONDS, Switch

_COUNTED: Final = frozenset({"_version", "cur_cfg", "next_cfg", "statistics"})
"""Columns of table Open_vSwitch that change by themselves."""


class SpareSwitch:
    """A switch that is lent to one test at a time."""

    def __init__(self) -> None:
        self._switch: Switch | None = None
        self._new: object = None

    def take(self) -> Switch:
        """The switch, running and empty."""
        if self._switch is None:
            self._switch = Switch().start()
            self._new = _seen(self._switch)
        return self._switch

    def give_back(self) -> None:
        """Clean the switch; end it if it differs from its start."""
        if self._switch and not _like_new(self._switch, self._new):
            self.close()

    def close(self) -> None:
        switch, self._switch = self._switch, None
        if switch:
            switch.stop()


def _like_new(switch: Switch, new: object) -> bool:
    """Whether nothing is left of a test after its bridges are deleted; False if that is unknown."""
    with suppress(OSError, ValueError, RuntimeError, subprocess.SubprocessError):
        if not all(runs(pid) and not is_stopped(pid) for pid in (switch.ovsdb_pid, switch.vswitchd_pid)):
            return False
        switch.clear()  # ovs-vswitchd has closed the ports before it is asked what there is
        return _seen(switch) == new
    return False


def _seen(switch: Switch) -> object:
    """What tests may leave: rows, remotes of the database, links, files."""
    argv = ["ovsdb-client", "--format=json", "dump", switch.ovsdb, "Open_vSwitch"]
    dump = subprocess.run(argv, capture_output=True, text=True, timeout=CTL_SECONDS, check=True).stdout
    tables = {table["caption"]: _rows(table) for table in map(json.loads, dump.splitlines())}
    remotes = sorted(switch.appctl("-t", "ovsdb-server", "ovsdb-server/list-remotes").splitlines())
    argv = ["nsenter", f"--net={switch.netns}", "ip", "-json", "link", "show"]
    links = subprocess.run(argv, capture_output=True, text=True, timeout=CTL_SECONDS, check=True).stdout
    names = sorted(each["ifname"] for each in json.loads(links))
    files = sorted(re.sub(r"\.\d+\.ctl$", ".ctl", path.name) for path in switch.dir.iterdir())
    return tables, remotes, names, files


def _rows(table: dict[str, list[str]]) -> list[dict[str, str]]:
    rows = [zip(table["headings"], data, strict=True) for data in table["data"]]
    return [{name: value for name, value in row if name not in _COUNTED} for row in rows]
