"""`list` and `show`: the attachments of this node, from the records and the switch. They change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from userspace_cni.attachment.dead_sockets import dead_sockets
from userspace_cni.attachment.listing import NOT_SERVING, SwitchPort, describe_all, name_of, select_status
from userspace_cni.attachment.port_now import read_causes
from userspace_cni.attachment.records import Record, record_key, step_to_json
from userspace_cni.attachment.steps import (
    Step,
)
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.name_completion import attachment_names, network_names
from userspace_cni.cli.node import limit_words, port_words
from userspace_cni.cli.node.quarantined import quarantined
from userspace_cni.cli.site import NodeCommand, Site, open_site
from userspace_cni.cli.view import Cell

_GOOD: Final = frozenset({"ready", "up", "connected"})
_INSTALLED: Final = {True: ("installed", "green"), False: ("not installed", "red"), None: ("unknown", "dim")}
_BAD: Final = frozenset({"down", "pending", "applying", "deleting", "dead", "silent"})
_COLUMNS: Final = ("POD", "IFNAME", "NETWORK", "BRIDGE", "PORT", "TYPE", "LINK", "VHOST", "STATE")
_WIDE: Final = (
    *_COLUMNS[:6],
    *("VLAN", "MTU", "MAC", "ADDRESSES", "LIMITS"),
    *_COLUMNS[6:],
    *("FROM-POD", "TO-POD", "DROPPED", "AGE"),
)
_LOGICAL: Final = "LOGICAL"
"""Only where an attachment is a logical port of OVN."""


@click.command(
    "list",
    cls=NodeCommand,
    examples=(
        "userspace-cni list",
        "userspace-cni list -o wide dpdk-app/net1",
        "userspace-cni list --json --network dpdk-net",
    ),
)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=attachment_names)
@click.option("--network", metavar="NETWORK", shell_complete=network_names, help="Only attachments of this network.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["wide", "json"]),
    help="wide: VLAN, MTU, MAC address, addresses, limits, frames and age too; json: a JSON list.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.pass_context
def list_command(ctx: click.Context, names: tuple[str, ...], network: str | None, output: str | None, as_json: bool) -> None:
    """List the attachments of this node, all or those named.

    A NAME is POD/IFNAME, NAMESPACE/POD/IFNAME or CONTAINERID-PREFIX/IFNAME; without IFNAME all of that pod or container.

    LINK and VHOST are what the switch says: whether the link is up, and whether an application is connected. While ovs-vswitchd
    is dead or silent LINK says so; in JSON that is `vswitchd`. With -o wide what the switch has instead of a recorded value
    stands behind it, as 100->200; frames are those that the switch has counted. Exit code: 1 when an attachment that is ready
    has a fault, such as a port that the switch lacks, or while ovs-vswitchd is dead; else 0.
    """
    if as_json and output == "wide":
        raise click.UsageError("--json and -o wide: give one of them")
    site = open_site(ctx)
    with view.progress("reading the records and asking the switch"):
        records = [record for record in site.records(names) if network in (None, record.network)]
        ports, vswitchd = _asked(site) if records else ([], "unknown")
    dead = dead_sockets(records, site.node.driver)
    boot_id, counted = site.node.store.boot_id(), site.counters(vswitchd) if records else None
    described = describe_all(records, ports, boot_id=boot_id, vswitchd=vswitchd, dead=dead, counters=counted)
    if as_json or output == "json":
        view.show_json(described)
    elif not described:
        view.note("no attachments" + (f" of network {network}" if network else " on this node"))
    else:
        columns = list(_WIDE if output == "wide" else _COLUMNS)
        rows = [_wide_row(each, site) if output == "wide" else _row(each) for each in described]
        if any(each["logical_port"] for each in described):
            columns.append(_LOGICAL)
            rows = [[*row, _logical(each["logical_port"])] for row, each in zip(rows, described, strict=True)]
        view.show_table(columns, rows)
        for each in described:
            for found in _problems(each):
                view.say(Cell(each["name"], "bold red"), ": ", found["message"])
                view.show_facts([("do", found["remedy"])])
        view.note_left_out([each for each in _WIDE if each not in columns], "-o wide")
    _exit_by(described, ctx)


@click.command("show", cls=NodeCommand, examples=("userspace-cni show default/dpdk-app",))
@click.argument("names", nargs=-1, metavar="NAME...", required=True, shell_complete=attachment_names)
@click.option("-o", "--output", type=click.Choice(["json"]), help="json: a JSON list, one object per attachment.")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.pass_context
def show_command(ctx: click.Context, names: tuple[str, ...], output: str | None, as_json: bool) -> None:
    """Show everything of an attachment: its path from the pod to the bridge, its steps, and what it shares with others.

    A NAME is POD/IFNAME, NAMESPACE/POD/IFNAME or CONTAINERID-PREFIX/IFNAME; without IFNAME all of that pod or container. Exit
    code: as that of `list`.
    """
    site = open_site(ctx)
    with view.progress("reading the records and asking the switch"):
        records = {record.key: record for record in site.records(names)}
        ports, vswitchd = _asked(site)
        dead = dead_sockets(records.values(), site.node.driver)
        boot_id, counted = site.node.store.boot_id(), site.counters(vswitchd)
        listed = describe_all(records.values(), ports, boot_id=boot_id, vswitchd=vswitchd, dead=dead, counters=counted)
        causes = site.node.switch.read_statistics([each["port"] for each in listed if each["now"]])
        drops = {(each.key, each.direction): each.drops for each in site.node.switch.list_limited(records.values())}
    status = {port.name: select_status(port) for port in ports or () if vswitchd not in NOT_SERVING}
    details = [_details(each, records[record_key(each["container"], each["ifname"])], status, site) for each in listed]
    for each in details:
        key = record_key(each["container"], each["ifname"])
        each["limit_drops"] = {way: drops.get((key, way)) for way in ("to_pod", "from_pod")}
        each["drop_causes"] = asdict(read_causes(causes.get(each["port"], {})))
    if as_json or output:
        view.show_json(details)
    else:
        for number, each in enumerate(details):
            if number:
                view.say("")
            _show(each, records[record_key(each["container"], each["ifname"])], site)
    _exit_by(details, ctx)


def _problems(each: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The findings about an attachment that are faults."""
    return [found for found in each["findings"] if found["severity"] != "note"]


def _exit_by(described: Iterable[Mapping[str, Any]], ctx: click.Context) -> None:
    """Exit with 1 for one that is ready and has a problem, or whose switch is dead.

    What is being attached or detached has a problem while that lasts, and a switch that is silent may only be late.
    """
    if any(each["state"] == "ready" and (each["problems"] or each["vswitchd"] == "dead") for each in described):
        ctx.exit(FOUND)


def _asked(site: Site) -> tuple[list[SwitchPort] | None, str]:
    """What the switch says of its ports, and whether ovs-vswitchd lives; problems are noted on stderr."""
    return site.switch_ports(), site.vswitchd()


def _row(each: Mapping[str, Any]) -> list[Cell | str]:
    return [
        each["name"].rpartition("/")[0],
        each["ifname"],
        each["network"],
        each["bridge"],
        each["port"],
        each["interface_type"],
        _coloured(_link(each)),
        _coloured(each["vhost"]["state"] if each["role"] else "-"),
        Cell(f"{each['state']} !", "red") if each["problems"] else _coloured(each["state"]),
    ]


def _wide_row(each: Mapping[str, Any], site: Site) -> list[Cell | str]:
    row, now = _row(each), each["now"]
    limits = limit_words.short(each["limits"], each["limits_by"])
    first = [
        _changed(_vlans(each["vlan"]), _vlans(now["vlan"]) if now else None),
        _changed(*port_words.mtu(each["mtu"], now)),
        _plain(each["mac"]),
        _plain(",".join(each["addresses"])),
        _changed(limits, limit_words.short_now(each) if now else None),
    ]
    frames, dropped = each["frames"], port_words.dropped(each["dropped"])
    counted = [str(frames[way]) if frames else "" for way in ("from_pod", "to_pod")]
    last = [*counted, dropped, _age(each["created"], site, short=True)]
    return [*row[:6], *first, *row[6:], *map(_plain, last)]


def _plain(text: str) -> Cell:
    return Cell(text or "-", "" if text else "dim")


def _changed(recorded: str, now: str | None) -> Cell:
    """A property of the record, in one word with what the switch has instead; None for what is not known."""
    if now is None or now == recorded:
        return _plain(recorded)
    return Cell(view.make_printable(f"{recorded or '-'}→{now or '-'}"), "red")


def _logical(port: Mapping[str, Any] | None) -> Cell:
    """A logical port's name, coloured by whether OVN has installed it, and marked where it has not."""
    if port is None:
        return Cell("-", "dim")
    word, style = _INSTALLED[port["installed"]]
    return Cell(port["name"] if port["installed"] else f"{port['name']} ({word})", style)


def _link(each: Mapping[str, Any]) -> str:
    """The link's state, or the state of ovs-vswitchd where the link's is not known because of it."""
    return str(each["vswitchd"] if each["vswitchd"] in NOT_SERVING and each["port"] else each["link_state"])


def _coloured(word: str) -> Cell:
    return Cell(word, "green" if word in _GOOD else "red" if word in _BAD else "dim")


def _details(described: dict[str, Any], record: Record, status: Mapping[str, Any], site: Site) -> dict[str, Any]:
    """The JSON of `list`, with whole steps (except a lease's stdin, which is the network's), the port's status, shared things."""
    return {
        **described,
        "steps": [_step_json(step) for step in record.steps],
        "switch_status": status.get(described["port"], {}),
        "result": record.result,
        "shared": _shared(record, site),
        "quarantined": quarantined(Path(site.node.store.journal.directory), (record.container_id,)),
    }


def _step_json(step: Step) -> dict[str, Any]:
    raw = step_to_json(step, whole=True)
    return {**raw, **{name: f"{len(raw[name])} characters" for name in step.abridged}}


def _shared(record: Record, site: Site) -> list[dict[str, Any]]:
    """The shared things of the attachment: each with whether we made it, and the names of its holders."""
    names = {other.key: name_of(other) for other in site.node.store.journal.records()}
    found = []
    for step in record.steps:
        thing = step.resource
        shared = site.node.store.journal.read_shared(thing.place) if thing else None
        if thing and shared:
            holders = [
                names.get(key, key)
                for key, steps in shared.holders.items()
                if any(each.resource and each.resource.key == thing.key for each in steps)
            ]
            found.append({"thing": thing.key, "made_by_us": thing.key in shared.made, "holders": sorted(holders)})
    return found


def _show(each: Mapping[str, Any], record: Record, site: Site) -> None:
    view.say(Cell(each["name"], "bold"), f"  network {each['network']}  ", _coloured(each["state"]))
    for found in each["findings"]:
        view.say("  ", Cell(found["message"], "dim" if found["severity"] == "note" else "red"))
        view.show_facts([("do", found["remedy"])])
    view.say("")
    view.show_path(_stations(each, record))
    view.say("")
    view.show_facts(_facts(each, site))
    view.say("")
    view.say(Cell("steps, in the order of ADD", "bold"))
    view.show_facts([(f"{number} {step.kind}", step.summary) for number, step in enumerate(record.steps, 1)])
    if each["shared"]:
        view.say("")
        view.say(Cell("shared", "bold"))
        view.show_facts([(thing["thing"].partition(":")[0], _holders(thing)) for thing in each["shared"]])
    if each["quarantined"]:
        view.say("")
        view.say(Cell("unreadable files of this container", "bold"))
        view.show_facts([(f"{entry['bytes']} bytes", entry["file"]) for entry in each["quarantined"]])


def _facts(each: Mapping[str, Any], site: Site) -> list[tuple[str, Cell | str]]:
    pod, now = each["pod"] or {}, each["now"]
    return [
        ("container", each["container"]),
        ("pod UID", pod.get("uid", "")),
        ("VM", each["vm"]),
        ("netns", each["netns"]),
        ("MAC", each["mac"]),
        ("addresses", view.join(each["addresses"])),
        ("MTU", _fact(*port_words.mtu(each["mtu"], now))),
        ("VLAN", _fact(_vlan(each["vlan"]), _vlan(now["vlan"]) if now else None)),
        *_logical_facts(each["logical_port"]),
        *limit_words.facts(each["limits"], now and now["limits"], each["limit_drops"], each["limits_by"]),
        *port_words.counted(each["frames"], each["dropped"], each["drop_causes"]),
        ("source of mirrors", view.join(list(map(limit_words.source, each["mirrors"])))),
        ("output of mirror", each["mirror_output"]),
        ("made", _age(each["created"], site)),
        *((f"switch: {key}", value) for key, value in sorted(each["switch_status"].items())),
    ]


def _fact(recorded: str, now: str | None) -> Cell | str:
    """A property of the record, and what the switch has instead."""
    if now is None or now == recorded:
        return recorded
    return Cell(f"{recorded or 'none'} in the record, {now or 'none'} in the switch", "red")


def _logical_facts(port: Mapping[str, Any] | None) -> list[tuple[str, Cell | str]]:
    if port is None:
        return []
    word, style = _INSTALLED[port["installed"]]
    return [("logical port", port["name"]), ("OVN has it", Cell(word, style))]


def _stations(each: Mapping[str, Any], record: Record) -> list[tuple[str, list[Cell | str]]]:
    """The path of a frame from the application to the bridge."""
    socket, vhost = each["socket"], each["vhost"]["state"]
    role = {"server": "makes the socket", "client": "connects to the socket"}.get(each["role"], "")
    pod: list[Cell | str] = [f"{each['name'].rpartition('/')[0]}, interface {each['ifname']}"]
    pod += [f"the application {role}"] if role else []
    link = each["link"]
    pod += [f"seen as {socket['pod']}"] if socket["pod"] else []
    stations = [("pod", pod)]
    if socket["host"]:
        stations.append(("socket", [socket["host"], *([Cell("dead: no process has it", "red")] if each["socket_dead"] else [])]))
    if record.mount:
        stations.append(("mount", [record.mount.target]))
    if socket["ovs"] and each["role"] == "client":
        stations.append(("OVS socket", [socket["ovs"]]))
    if link:
        stations.append(("link", [view.join([f"host end {link['host']}", *filter(None, [link["guard"]])])]))
    if each["port"] and link:
        state = _coloured(_link(each))
    elif each["port"]:
        state = Cell(f"link {_link(each)}, vhost {vhost}", _coloured(vhost).style)
    if each["port"]:
        stations += [
            ("port", [f"{each['port']}  {each['interface_type']}", state]),
            ("bridge", [view.join([each["bridge"], *filter(None, [_vlan(each["vlan"])])])]),
        ]
    return stations


def _holders(thing: Mapping[str, Any]) -> str:
    path = thing["thing"].partition(":")[2]
    made = "made by us, removed with its last holder" if thing["made_by_us"] else "not made by us, and stays"
    return f"{path}: {made}; held by {view.join(thing['holders'], 'no attachment')}"


def _vlan(vlan: Mapping[str, Any]) -> str:
    parts = [f"tag {vlan['tag']}" if vlan["tag"] is not None else "", vlan["mode"]]
    parts.append(f"trunks {', '.join(map(str, vlan['trunks']))}" if vlan["trunks"] else "")
    return ", ".join(filter(None, parts))


def _vlans(vlan: Mapping[str, Any]) -> str:
    """The VLAN in one word: `100`, `trunk:1,2`, or both."""
    trunks = f"trunk:{','.join(map(str, vlan['trunks']))}" if vlan["trunks"] else ""
    return ",".join(filter(None, ["" if vlan["tag"] is None else str(vlan["tag"]), trunks]))


def _age(created: Mapping[str, Any], site: Site, *, short: bool = False) -> str:
    """How long ago ADD was; `short`: in one word, as `3h`."""
    if not created["boot"]:
        return ""
    if created["boot"] != site.node.store.boot_id():
        return "rebooted" if short else "before the last boot"
    seconds = max(0, site.node.store.boottime_ns() - created["boottime_ns"]) // 1_000_000_000
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    largest = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds % 60, "s")]
    first = next((index for index, (count, _) in enumerate(largest) if count), 3)
    if short:
        return f"{largest[first][0]}{largest[first][1][0]}"
    return " ".join(f"{count} {unit}" for count, unit in largest[first : first + 2] if count or unit == "s") + " ago"
