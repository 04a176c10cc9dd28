"""The counters of the legacy iptables, by which a rule is found that nftables does not trace. Only reads.

The legacy tables of a namespace are listed by the kernel once a program has used them; where none is, no program is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink.netns import Netns
from userspace_cni.host.node_net.programs import run

_LISTS: Final = {4: "/proc/thread-self/net/ip_tables_names", 6: "/proc/thread-self/net/ip6_tables_names"}
_PROGRAMS: Final = {4: "iptables-legacy-save", 6: "ip6tables-legacy-save"}
_POLICY: Final = re.compile(r":(\S+) (DROP) \[(\d+):\d+\]")
_RULE: Final = re.compile(r"\[(\d+):\d+\] (-A .*)")
_ENDING: Final = re.compile(r"-j (?:DROP|REJECT|QUEUE|NFQUEUE|TARPIT|STEAL)\b")
_DIVERTING: Final = re.compile(r"-[jg] (?!ACCEPT\b|MASQUERADE\b|SNAT\b|LOG\b|MARK\b|CONNMARK\b|TCPMSS\b)")


def has_tables(netns: Netns, version: int) -> bool:
    try:
        return bool(netns.do(lambda: Path(_LISTS[version]).read_text(encoding="ascii").strip()))
    except OSError:
        return False  # the kernel has none at all


def dump_tables(version: int, switch_netns: str, root: HostRoot = HERE, *, deadline: Deadline) -> str:
    """All legacy tables with counters, as iptables-save writes them. Raises StepFailed and Unavailable."""
    done = run((_PROGRAMS[version], "-c"), "", switch_netns, root, deadline)
    if done.returncode:
        raise StepFailed(f"{_PROGRAMS[version]}: {' '.join(done.stderr.split())[:400]}")
    return done.stdout


def list_ending_rules(text: str) -> Mapping[str, int]:
    """The rules and policies that end packets, as `filter: -A FORWARD -j DROP`, each with the packets that it has ended. Pure."""
    found: dict[str, int] = {}
    table = ""
    for line in text.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif policy := _POLICY.match(line):
            found[f"{table}: the policy DROP of chain {policy[1]}"] = int(policy[3])
        elif (rule := _RULE.match(line)) and _ENDING.search(rule[2]):
            key = f"{table}: {rule[2]}"
            found[key] = found.get(key, 0) + int(rule[1])
    return found


def names(text: str, link: str, *, diverting: bool) -> bool:
    """Whether a rule asks for the link; `diverting`: only one that ends packets or leads them elsewhere. Pure."""
    asked = re.compile(rf"-[io] (?:{'|'.join(re.escape(each) for each in _spellings(link))})(?= |$)")
    rules = (rule[2] for line in text.splitlines() if (rule := _RULE.match(line)))
    return any(asked.search(each) and (not diverting or _DIVERTING.search(each)) for each in rules)


def _spellings(link: str) -> list[str]:
    return [link, *(f"{link[:length]}+" for length in range(1, len(link) + 1))]
