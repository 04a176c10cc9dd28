"""Runs nft(8) in the namespace where the switch opens its ports; the rules of a node's gateways are made by it.

It is given a whole ruleset on its standard input, which the kernel takes in one transaction. What it prints of a table is
compared with what it prints of the same ruleset in a namespace of its own: so no release's spelling of a rule is written here.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.node_net.programs import run

if TYPE_CHECKING:
    import subprocess

_NFT: Final = "nft"
_IN_ITS_OWN: Final = ("unshare", "--net", "sh", "-c", 'nft -f - && exec nft -j list table inet "$1"', "sh")
_NO_TABLE: Final = f"Error: {os.strerror(errno.ENOENT)}"
"""What nft says of a table that is not there, without translations; without the first word, what a loader says of a library."""
_SAID_MAX: Final = 400
_NOISE: Final = ("handle", "metainfo")


def load(ruleset: str, switch_netns: str, root: HostRoot, deadline: Deadline) -> None:
    """Make the transaction that the ruleset is. Raises StepFailed with what nft says."""
    done = run((_NFT, "-f", "-"), ruleset, switch_netns, root, deadline)
    if done.returncode:
        raise StepFailed(f"nft -f: {_said(done)}", "the kernel needs CONFIG_NF_TABLES_INET and CONFIG_NFT_MASQ")


def list_table(table: str, switch_netns: str, root: HostRoot, deadline: Deadline) -> list[Mapping[str, Any]]:
    """What is in the table of family inet, in the order of the kernel; [] when there is none. Raises StepFailed, Unavailable."""
    done = run((_NFT, "-j", "list", "table", "inet", table), "", switch_netns, root, deadline)
    if done.returncode and done.stderr.startswith(_NO_TABLE):
        return []
    if done.returncode:
        raise StepFailed(f"nft list table inet {table}: {_said(done)}", "nft list ruleset, in the switch's network namespace")
    return _objects(done.stdout)


def as_listed(ruleset: str, table: str, deadline: Deadline) -> list[Mapping[str, Any]]:
    """What `listed` gives of a table that this ruleset makes: found out in a namespace that is there for that alone."""
    done = run((*_IN_ITS_OWN, table), ruleset, "", HERE, deadline)
    if done.returncode:
        raise StepFailed(f"nft in a namespace of its own: {_said(done)}", "it takes CAP_SYS_ADMIN")
    return _objects(done.stdout)


def rule(chain: tuple[str, str, str], handle: int, switch_netns: str, root: HostRoot, deadline: Deadline) -> str:
    """A rule as nft writes it, without its handle and what it has counted; "" when it is gone. Raises StepFailed.

    `chain`: family, table and name.
    """
    done = run((_NFT, "-a", "-s", "list", "chain", *chain), "", switch_netns, root, deadline)
    if done.returncode:
        raise StepFailed(f"nft list chain {' '.join(chain)}: {_said(done)}")
    ends = f" # handle {handle}"
    return next((line.strip().removesuffix(ends) for line in done.stdout.splitlines() if line.endswith(ends)), "")[:_SAID_MAX]


def _objects(text: str) -> list[Mapping[str, Any]]:
    """The things of a list of nft's, without what differs between two equal ones."""
    try:
        found = json.loads(text)["nftables"]
    except (ValueError, KeyError, TypeError) as error:
        raise StepFailed("nft -j: what it prints is no list", "nft --version: JSON has to be compiled in") from error
    return [{kind: _bare(each)} for thing in found for kind, each in thing.items() if kind not in _NOISE]


def _bare(thing: Any) -> Any:
    return {key: value for key, value in thing.items() if key not in _NOISE} if isinstance(thing, dict) else thing


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(done.stderr.split())[:_SAID_MAX] or f"exit code {done.returncode}"
