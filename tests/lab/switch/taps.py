"""Taps of other programs in a network namespace, as ip(8) makes and shows them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.lab.node.links import inside


def add_tap(netns: str, name: str, *flags: str) -> dict[str, Any]:
    """Make a persistent tap that no process has open; what `tap` tells of it."""
    inside(netns, "ip", "tuntap", "add", "dev", name, "mode", "tap", *flags)
    return tap(netns, name)


def tap(netns: str, name: str) -> dict[str, Any]:
    """Index, MAC, alias, kind and persistence of a link; {} if there is none of that name."""
    argv = ["nsenter", f"--net={netns}", "ip", "-details", "-json", "link", "show", "dev", name]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if said.returncode:
        return {}
    [found] = json.loads(said.stdout)
    about = found.get("linkinfo", {}).get("info_data", {})
    return {
        "index": found["ifindex"],
        "mac": found["address"],
        "alias": found.get("ifalias", ""),
        "flags": sorted(set(found["flags"]) - {"NO-CARRIER"}),
        "persist": about.get("persist", False),
    }


def delete_link(netns: str, name: str) -> None:
    inside(netns, "ip", "link", "delete", name, check=False)
