"""The rows of `top`: what is known of each attachment at one look, chosen, grouped and sorted. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.attachment.listing import SwitchPort, name_of
from userspace_cni.attachment.records import Record
from userspace_cni.base.polling import shares_by_port
from userspace_cni.diagnosis.node_map import find_behind
from userspace_cni.node.port_rates import UNKNOWN, TrafficRates, total
from userspace_cni.node.traffic import Traffic

FAULTS: Final = frozenset({"error", "no port", "old boot"})
"""States in which an attachment that is ready does not work."""
_UNFINISHED: Final = {"pending": "attaching", "applying": "attaching", "deleting": "detaching"}


@dataclass(frozen=True)
class LimitUse:
    """A limit of one direction: bit/s, None for one without a rate, and the frames that it has dropped, None while unknown."""

    rate: int | None
    drops: int | None


@dataclass(frozen=True)
class TopRow:
    """One attachment, or with `members` a network with the sum of so many. `state`: a word, `problem` more of it. `cores`: those
    that poll it, with the percent of their time in the latest period."""

    name: str
    network: str = ""
    bridge: str = ""
    port: str = ""
    kind: str = ""
    state: str = ""
    problem: str = ""
    rates: TrafficRates = UNKNOWN
    limits: Mapping[str, LimitUse] = field(default_factory=dict)
    cores: Mapping[int, int | None] = field(default_factory=dict)
    members: int = 0

    @property
    def share(self) -> int | None:
        """Percent of the time of polling threads."""
        known = [share for share in self.cores.values() if share is not None]
        return sum(known) if known else None

    def used(self, way: str) -> float | None:
        """The part of the limit of that direction, `to_pod` or `from_pod`, that it carries; None without limit or rate.

        More than 1 from vhost-user ports that send more: DPDK counts frames before the limit drops them.
        """
        limit, bits = self.limits.get(way), getattr(self.rates, f"bits_{way}")
        return bits / limit.rate if limit and limit.rate and bits is not None else None

    @property
    def most_used(self) -> float | None:
        """The larger of both directions."""
        return max((part for way in ("to_pod", "from_pod") if (part := self.used(way)) is not None), default=None)


@dataclass(frozen=True)
class TopUplink:
    """What leads out of a bridge: its interface, whose `rates` are those of a pod there, so that what comes in is `from_pod`.

    `link`: up, down, or "" while not known.
    """

    name: str
    bridge: str
    link: str
    rates: TrafficRates


@dataclass(frozen=True)
class SortKey:
    """A way to sort: its key on the keyboard, its name, and a row's value; None comes last either way."""

    key: str
    name: str
    of: Callable[[TopRow], float | str | None]
    largest_first: bool = True


SORT_KEYS: Final = (
    SortKey("N", "name", lambda row: row.name, largest_first=False),
    SortKey("S", "state", lambda row: row.state, largest_first=False),
    SortKey("F", "frames", lambda row: row.rates.frames),
    SortKey("B", "bits", lambda row: row.rates.bits),
    SortKey("D", "drops", lambda row: row.rates.drops),
    SortKey("L", "limit used", lambda row: row.most_used),
    SortKey("P", "polling", lambda row: row.share),
    SortKey("T", "network", lambda row: row.network, largest_first=False),
)
"""In the order in which < and > go through them, that of the columns."""
DEFAULT_SORT: Final = "bits"


@dataclass(frozen=True)
class RowChoice:
    """What a person wants to see: a name of SORT_KEYS, the other way round or not, a text that names contain (after `!`: do not
    contain), and whether networks are put together."""

    sort: str = DEFAULT_SORT
    reverse: bool = False
    text: str = ""
    grouped: bool = False

    @property
    def largest_first(self) -> bool:
        return _key(self.sort).largest_first != self.reverse


def make_rows(traffic: Traffic, rates: Mapping[str, TrafficRates], boot_id: str) -> list[TopRow]:
    """A row for each attachment that a record or a port of ours shows."""
    cores = shares_by_port(traffic.threads.threads) if traffic.threads else {}
    limits: dict[str, dict[str, LimitUse]] = defaultdict(dict)
    for each in traffic.limited:
        limits[each.port.name][each.direction] = LimitUse(each.rate, each.drops)
    rows, seen = [], set()
    for record in traffic.records:
        ref = record.port_ref
        name = ref.name if ref else ""
        seen.add(name)
        port = traffic.ports.get(name) if traffic.ports else None
        state, problem = _state(record, port, traffic, boot_id)
        rows.append(
            TopRow(
                name_of(record),
                record.network,
                ref.bridge if ref else "",
                name,
                port.interface_type if port else "",
                state,
                problem,
                rates.get(name, UNKNOWN),
                limits.get(name, {}),
                cores.get(name, {}),
            )
        )
    for name, known in (traffic.ports or {}).items():
        if name not in seen:
            marks = traffic.marks.get(name, {})
            state, problem = _port_state(known, traffic)
            rows.append(
                TopRow(
                    _name_of_marks(marks) or name,
                    marks.get("network", ""),
                    known.bridge,
                    name,
                    known.interface_type,
                    state,
                    problem,
                    rates.get(name, UNKNOWN),
                    cores=cores.get(name, {}),
                )
            )
    return rows


def find_uplinks(traffic: Traffic, rates: Mapping[str, TrafficRates]) -> list[TopUplink]:
    """The NICs of the node's bridges, each member of a bond by itself."""
    return [
        TopUplink(each.name, bridge.name, each.link_state, rates.get(each.name, UNKNOWN))
        for bridge in traffic.bridges
        for port in bridge.ports
        if port.interfaces and port.name != bridge.name and find_behind(port, port.interfaces[0]) == "uplink"
        for each in port.interfaces
    ]


def choose(rows: Iterable[TopRow], choice: RowChoice) -> list[TopRow]:
    """The rows that the choice shows, in its order; where it is grouped, before those of a network one that sums them up."""
    found = [row for row in rows if _contains(row, choice.text)]
    if not choice.grouped:
        return _sorted(found, choice)
    groups: dict[str, list[TopRow]] = defaultdict(list)
    for row in found:
        groups[row.network].append(row)
    sums = {name: _summed(name, members) for name, members in groups.items()}
    order = _sorted(sums.values(), choice)
    return [row for each in order for row in (each, *_sorted(groups[each.network], choice))]


def next_sort(name: str, step: int) -> str:
    """The name of the next way to sort, or of the one before; the ends stay."""
    names = [key.name for key in SORT_KEYS]
    return names[min(max(names.index(name) + step, 0), len(names) - 1)]


def _key(name: str) -> SortKey:
    return next(key for key in SORT_KEYS if key.name == name)


def _contains(row: TopRow, text: str) -> bool:
    wanted = text.removeprefix("!").lower()
    return (any(wanted in each.lower() for each in (row.name, row.network, row.bridge, row.port))) != (
        text.startswith("!") and wanted != ""
    )


def _sorted(rows: Iterable[TopRow], choice: RowChoice) -> list[TopRow]:
    """By name where the values are equal, so that rows without traffic do not change places; unknown values last."""
    of = _key(choice.sort).of
    by_name = sorted(rows, key=lambda row: row.name)
    known = [row for row in by_name if of(row) is not None]
    known.sort(key=of, reverse=choice.largest_first)  # type: ignore[arg-type]  # one type a key
    return [*known, *(row for row in by_name if of(row) is None)]


def _summed(network: str, members: Sequence[TopRow]) -> TopRow:
    cores: dict[int, int | None] = {}
    for row in members:
        for core, share in row.cores.items():
            cores[core] = None if share is None else (cores.get(core) or 0) + share
    faults = sum(row.state in FAULTS for row in members)
    state = f"{faults} faulty" if faults else ""
    rates = total(row.rates for row in members)
    return TopRow(network or "no network", network, state=state, rates=rates, cores=cores, members=len(members))


def _state(record: Record, port: SwitchPort | None, traffic: Traffic, boot_id: str) -> tuple[str, str]:
    """The state in a word, with more of it."""
    if record.state != "ready":
        return _UNFINISHED[record.state], ""
    if boot_id and record.boot_id and record.boot_id != boot_id:
        return "old boot", "made in an earlier boot: its sandbox is gone"
    if traffic.ports is None:
        return "unknown", ""
    if port is None:
        return "no port", f"the switch has no port {record.port.name if record.port else ''}"
    return _port_state(port, traffic)


def _port_state(port: SwitchPort, traffic: Traffic) -> tuple[str, str]:
    if not traffic.serves:
        return "unknown", ""
    if port.error:
        return "error", port.error
    if port.interface_type.startswith("dpdkvhostuser"):
        connected = port.link_state == "up" or port.status.get("status") == "connected"
        return ("connected" if connected else "no app"), ""
    return {"up": "link up", "down": "link down"}.get(port.link_state, "unknown"), ""


def _name_of_marks(marks: Mapping[str, str]) -> str:
    """As `listing.name_of`, of a port without a record."""
    owner = [marks.get("pod-namespace", ""), marks.get("pod-name", "")] if marks.get("pod-name") else [""]
    if not any(owner):
        owner = [marks.get("container-id", "")[:12]]
    return "/".join(filter(None, [*owner, marks.get("ifname", "")]))
