"""Runs programs of the node in the namespace where the switch opens its ports, each with a bound."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed, Unavailable, of_kernel
from userspace_cni.base.root import HostRoot
from userspace_cni.host.netlink.netns import open_switch_netns
from userspace_cni.linux.thread_processors import anywhere


def run(
    command: Sequence[str], given: str, switch_netns: str, root: HostRoot, deadline: Deadline
) -> subprocess.CompletedProcess[str]:
    """Run it in the namespace, with `given` as its standard input: a child is where the thread was that made it.

    Raises StepFailed for one that cannot be started, and Unavailable for one that has not ended at the deadline.
    """
    deadline.require(command[0])

    def begin() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        environment = {**os.environ, "LC_ALL": "C"}
        # what other programs have written in their tables may be of any encoding
        with anywhere():
            return subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, encoding="utf-8", errors="replace"
            )

    with open_switch_netns(switch_netns, root) as netns:
        try:
            process = netns.do(begin)
        except FileNotFoundError as error:
            raise StepFailed(
                f"{command[0]}: there is no such program",
                "install nftables (and util-linux); for rules of the legacy one, iptables",
            ) from error
        except OSError as error:
            raise of_kernel(f"starting {command[0]}", error, "gateways need it") from error
    seconds = deadline.remaining()
    with process:
        try:
            out, err = process.communicate(given, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise Unavailable(
                f"{' '.join(command)}: it has not ended within {seconds:.1f} s",
                "another program may hold the rules: nft list ruleset",
            ) from error
    return subprocess.CompletedProcess(command, process.returncode, out, err)
