"""`routes list`: what the agent keeps in pods, for which Route, and what it leaves out and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from userspace_cni.cli import view
from userspace_cni.cli.routes.asking import ask, pod_name, tell_problems
from userspace_cni.cli.site import FOUND, NodeCommand, Refused, open_site
from userspace_cni.cli.view import Cell, Column

_ROUTES: Final = (Column("ROUTE"), Column("PODS"), Column("STATE"), Column("DETAILS"))
_PODS: Final = (Column("POD"), Column("STATE"), Column("ROUTE", rank=1), Column("DETAILS"))
_COUNTED: Final = ("applied", "skipped", "failed")
_TOLD: Final = (("skipped", "yellow"), ("refused", "red"), ("conflicts", "yellow"))


@click.command("list", cls=NodeCommand, short_help="List Routes, and what they make in pods.")
@click.option("--pod", callback=pod_name, metavar="NAMESPACE/NAME", help="Only what concerns this pod.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def list_command(ctx: click.Context, pod: str, as_json: bool) -> None:
    """List the Routes with their pods on this node; and for each pod what is wanted, whether it is there, what is skipped,
    refused or in conflict, and why.

    The agent is asked: it tells what its last look at each pod showed. Exit code: 0, also where something is refused; 1 when the
    agent knows no pod of that name; 2 when routes are off; 3 when no agent answers.
    """
    with view.progress("asking the agent"):
        found: dict[str, Any] = ask(open_site(ctx))
    if pod:
        found = _of(found, pod)
    if as_json:
        view.show_json(found)
    else:
        _show(found, whole=bool(pod))


def _of(found: Mapping[str, Any], pod: str) -> dict[str, Any]:
    """What concerns the pod. Raises Refused where there is none."""
    pods = [each for each in found["pods"] if _name(each) == pod]
    if not pods:
        why = "; ".join(f"{source}: {problem}" for source, problem in found["problems"].items())
        raise Refused(f"the agent knows no network namespace of pod {pod} on this node{why and f'; {why}'}", FOUND)
    names = {name for each in pods for name in each["routes"]}
    return {**found, "routes": [each for each in found["routes"] if each["name"] in names], "pods": pods}


def _show(found: Mapping[str, Any], *, whole: bool) -> None:
    """Two tables on stdout: Routes, then pods. `whole`: also pods for which no Route asks."""
    if found["routes"]:
        view.show_table(_ROUTES, [_route_row(each) for each in found["routes"]])
    else:
        view.note("no Route concerns this pod" if whole else "there is no Route")
    rows = [row for each in found["pods"] for row in _pod_rows(each)]
    if rows:
        if found["routes"]:
            click.echo()
        view.show_table(_PODS, rows)
    elif found["routes"]:
        view.note("no pod of this node is concerned")
    tell_problems(found["problems"])
    if unreadable := found.get("unreadable"):
        view.note(f"{view.counted(unreadable, 'file')} of the runtime's cache could not be used")


def _route_row(route: Mapping[str, Any]) -> list[Cell | str]:
    counts = route["pods"]
    said = [f"{counts[each]} {each}" for each in _COUNTED if counts.get(each)]
    pods = f"{counts['matched']}" + (f": {view.joined(said)}" if said else "")
    wrong = [*route["problems"], *route["told"]]
    if not route["usable"]:
        state = Cell("unusable", "red")
    elif wrong:
        state = Cell("in part", "yellow")
    else:
        state = Cell("good", "green")
    return [route["name"], pods, state, "; ".join([*wrong, *route["remarks"]])]


def _pod_rows(pod: Mapping[str, Any]) -> Iterator[list[Cell | str]]:
    """A row for each thing that is wanted in the pod, or is told of it."""
    name = _name(pod)
    if pod["problem"]:
        yield [name, Cell("failed", "red"), "", pod["problem"]]
    if pod["host_network"]:
        yield [name, Cell("left alone", "dim"), "", "it has the node's own network"]
        return
    refused = list(pod["refused"])
    for each in pod["wanted"]:
        text = _route_text(each)
        reasons = [said for said in refused if said.startswith(f"{text}: ")]
        refused = [said for said in refused if said not in reasons]
        if reasons:
            yield [name, Cell("refused", "red"), each["route"], f"{reasons[0]} (by the kernel)"]
        elif pod["problem"]:
            yield [name, Cell("wanted", "yellow"), each["route"], f"{text} ({each['why']})"]
        else:
            yield [name, Cell("there", "green"), each["route"], f"{text} ({each['why']})"]
    for key, style in _TOLD:
        for said in refused if key == "refused" else pod[key]:
            of, _, text = said.partition(": ")
            yield [name, Cell(key.removesuffix("s"), style), of, text]


def _route_text(wanted: Mapping[str, Any]) -> str:
    """The route as ip(8) shows it, short."""
    dst = "default" if wanted["dst"].startswith("default") else wanted["dst"]
    return f"{dst}{' via ' + wanted['via'] if wanted['via'] else ''} dev {wanted['dev']}"


def _name(pod: Mapping[str, Any]) -> str:
    return f"{pod['namespace']}/{pod['name']}"
