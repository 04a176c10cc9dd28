"""The log of ovs-vswitchd: where it is, and what it says of a port that is not open. OVSDB has the number of the error alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from userspace_cni.cli.site import Site

USUAL: Final = "/var/log/openvswitch/ovs-vswitchd.log"
_TAIL: Final = 1 << 18
"""How many bytes of its end are read."""
_SHOWN: Final = 300
_OPTION: Final = re.compile(rb"--log-file=([^\0]+)")
_COMPLAINT: Final = re.compile(r"[^|]*\|[^|]*\|([^|]*)\|(?:WARN|ERR|EMER)\|(.*)")
"""A line of ovs-vlog(5) above INFO: time, number, module, level, text."""


def find_log(site: Site, pid: int | None) -> str:
    """Where that ovs-vswitchd writes its log, by its command line; the usual place where that is not known."""
    try:
        match = _OPTION.search(Path(site.map_path(f"/proc/{pid}/cmdline")).read_bytes()) if pid else None
    except OSError:
        match = None
    return match[1].decode("utf-8", "replace") if match else USUAL


def last_complaint(path: str, about: str, besides: str) -> str:
    """The last line above INFO at the log's end that mentions `about` and does not only say `besides`.

    Without time and number; "" for none, and where the file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            lines = file.read(_TAIL).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        if about in line and besides not in line and (match := _COMPLAINT.fullmatch(line)):
            return f"{match[1]}: {match[2]}"[:_SHOWN]
    return ""
