"""What network policy costs a pair of vhost-user pods on one node: the rate of frames between them with so many ACLs.

`python tests/bench/policed_pair.py [--json] [--rounds N] [--seconds S] [--connections N,...] [--flows]`, as root, on a machine
that does nothing else. UDP in frames of 64 bytes from the one pod to the other, both on OVN's bridge of one private switch, at
the rate that the polling thread reaches. The rows are as the controller writes them: for each policy a port group, a set of
addresses, rules with one port each, and a drop for the rest. Everything is measured in one run in turns.

    bare            no ACL and no load balancer
    service         a load balancer in the switch's group, to which nothing is sent
    N stateful      N rules that allow related packets, half of them on the sender's way out; the last ones match
    N stateless     the same with `allow-stateless`
    others only     100 stateful rules on the port group of another pod of the switch
    A + B           both; with `others` the pair's own rules and the others'
    unanswered      connections to which the second pod never sends anything

Ratios are medians of those of each round to its `bare`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from tests.bench.ovn_pair import ADDRESSES, NAMES, SWITCH, OvnPair, Rate, bursts, frames
from tests.bench.report import arguments, machine, tell
from tests.lab.ovn.central import version
from tests.lab.switch.switch import wait_until

PORT: Final = 5_000
_ANSWERED, _UNANSWERED = 20_000, 30_000
"""The first of the senders' ports."""
_GROUP: Final = "cluster-load-balancers"
_ALLOW, _DENY = 1001, 1000
_PEERS: Final = 10
"""Addresses in each address set."""


class Arm(NamedTuple):
    """Which rows there are: rules for the pair and for the other pod, and their action."""

    stateful: int = 0
    stateless: int = 0
    others: int = 0
    service: bool = False
    answered: bool = True


ARMS: Final = {
    "bare": Arm(),
    "service": Arm(service=True),
    "2 stateful": Arm(2),
    "10 stateful": Arm(10),
    "100 stateful": Arm(100),
    "100 stateful, unanswered": Arm(100, answered=False),
    "10 stateless": Arm(stateless=10),
    "100 stateless": Arm(stateless=100),
    "others only": Arm(others=100),
    "100 stateless + others": Arm(stateless=100, others=100),
    "service + 100 stateful": Arm(100, service=True),
    "service + 100 stateless": Arm(stateless=100, service=True),
}


def rules(name: str, members: Sequence[str], count: int, action: str) -> list[str]:
    """The words of ovn-nbctl that make them: half of the rules for each direction, each of a policy of its own."""
    words: list[str] = []
    for number in range(count // 2):
        group, is_last = f"{name}{number}", number == count // 2 - 1
        peers = [f"10.9.{number}.{last}" for last in range(1, _PEERS)] + (list(ADDRESSES) if is_last else [])
        words += ["--", "create", "Address_Set", f"name={group}", "addresses=" + ",".join(f'"{each}"' for each in peers)]
        words += ["--", "pg-add", group, *members]
        port = PORT if is_last else 6_000 + number
        for direction, place, end in (("to-lport", "outport", "src"), ("from-lport", "inport", "dst")):
            match = f"{place} == @{group} && ip4 && ip4.{end} == ${group} && udp && udp.dst == {port}"
            words += ["--", "acl-add", group, direction, str(_ALLOW), match, action]
            words += ["--", "acl-add", group, direction, str(_DENY), f"{place} == @{group} && ip", "drop"]
    return words


class Bench:
    """The pair, and the rows of one arm after the other."""

    def __init__(self, pair: OvnPair, seconds: float) -> None:
        self._pair = pair
        self._seconds = seconds
        pair.ovn.nbctl("lsp-add", SWITCH, "other", "--", "lsp-set-addresses", "other", "0a:00:00:00:01:0c 10.1.0.12")
        pair.ovn.nbctl("create", "Load_Balancer_Group", f"name={_GROUP}")
        group = pair.ovn.nbctl("--bare", "--columns=_uuid", "find", "Load_Balancer_Group", f"name={_GROUP}")
        pair.ovn.nbctl("add", "Logical_Switch", SWITCH, "load_balancer_group", group)
        pair.ovn.nbctl("lb-add", "service", "10.96.0.1:80", "10.1.0.12:80")

    def become(self, arm: Arm) -> None:
        """The rows of this arm alone, in force."""
        nbctl = self._pair.ovn.nbctl
        groups = nbctl("--bare", "--columns=name", "list", "Port_Group").split()
        words = [word for name in groups for word in ("--", "pg-del", name)]
        nbctl(*words[1:], "--", "--all", "destroy", "Address_Set") if words else None
        service = nbctl("--bare", "--columns=_uuid", "find", "Load_Balancer", "name=service")
        has = "add" if arm.service else "remove"
        nbctl(has, "Load_Balancer_Group", _GROUP, "load_balancer", service)
        words = rules("f", NAMES, arm.stateful, "allow-related") + rules("l", NAMES, arm.stateless, "allow-stateless")
        words += rules("o", ["other"], arm.others, "allow-related")
        nbctl(*words[1:]) if words else None
        nbctl("--wait=hv", "sync")

    def run(self, arm: Arm, connections: int) -> tuple[Rate, dict[str, float]]:
        """The rate, and what the polling thread says of it."""
        first = _ANSWERED if arm.answered else _UNANSWERED
        there, back = (bursts(frames(PORT, range(first, first + connections), back=back)) for back in (False, True))
        wait_until(lambda: self._pair.arrive(there), what=f"frames with {arm}")
        if arm.answered and not arm.stateless:  # stateless rules are for one direction here
            wait_until(lambda: self._pair.arrive(back, back=True), what=f"answers with {arm}")
        self._pair.send(there, 0.2)
        self._pair.clear_statistics()
        found = self._pair.send(there, self._seconds)
        return found, self._pair.statistics()


def measure(pair: OvnPair, rounds: int, seconds: float, connections: list[int]) -> dict[str, Any]:
    bench = Bench(pair, seconds)
    found: dict[str, dict[str, list[tuple[Rate, dict[str, float]]]]] = {str(count): {} for count in connections}
    kept: dict[str, list[str]] = {}
    for number in range(rounds):
        turn = number % len(ARMS)
        for name in (*list(ARMS)[turn:], *list(ARMS)[:turn]):
            bench.become(ARMS[name])
            for count in connections:
                found[str(count)].setdefault(name, []).append(bench.run(ARMS[name], count))
            kept[name] = pair.datapath_flows()
        sys.stderr.write(f"round {number + 1} of {rounds}; {machine()}\n")
    return {
        "connections": {
            count: {name: _summed(runs, rows["bare"]) for name, runs in rows.items()} for count, rows in found.items()
        },
        "flows": kept,
    }


def _summed(runs: list[tuple[Rate, dict[str, float]]], bare: list[tuple[Rate, dict[str, float]]]) -> dict[str, float]:
    ratios = [mine.plateau / its.plateau for (mine, _), (its, _) in zip(runs, bare, strict=True)]
    told = {name: statistics.median(each.get(name, 0.0) for _, each in runs) for name in runs[0][1]}
    by_emc, by_megaflow = (told.pop(name, 0.0) for name in ("by emc", "by megaflow"))
    share = {"exact match": by_emc / (by_emc + by_megaflow)} if by_emc + by_megaflow else {}  # OVS 4.0 words them in another way
    return {
        "Mpps": round(statistics.median(rate.plateau for rate, _ in runs), 2),
        "mean Mpps": round(statistics.median(rate.mean for rate, _ in runs) / 1e6, 2),
        "ratio": round(statistics.median(ratios), 2),
        "least": round(min(ratios), 2),
        "most": round(max(ratios), 2),
        **{name: round(value, 2) for name, value in (share | told).items()},
    }


def show(report: Mapping[str, Any]) -> None:
    console = Console(width=160)
    for count, rows in report["connections"].items():
        table = Table(title=f"{count} connections, frames of 64 bytes", title_justify="left")
        for column in ("", *rows["bare"]):
            table.add_column(column, justify="right" if column else "left")
        for name, row in rows.items():
            table.add_row(name, *map(str, row.values()))
        console.print(table)
    for name, lines in report.get("flows", {}).items():
        console.print(f"--- {name}", *lines, sep="\n", soft_wrap=True, markup=False)
    console.print(report["machine"], report["versions"], sep="; ")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    parser.add_argument("--connections", type=lambda text: [int(word) for word in text.split(",")], default=[1, 1024])
    parser.add_argument("--flows", action="store_true", help="print the datapath's flows of each kind")
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "rounds": options.rounds}
    with OvnPair() as pair, pair.attached():
        report["versions"] = f"OVN {version()}, OVS {pair.version()}"
        report |= measure(pair, options.rounds, options.seconds, options.connections)
    if not options.flows:
        del report["flows"]
    return tell(report, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
