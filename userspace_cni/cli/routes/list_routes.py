"""`routes list`: what the agent keeps in pods, for which Route, and what it leaves out and why; and which routes are there now.

The agent tells of its last look at each pod, which may be minutes old, so the command looks into the pods itself. It changes
nothing there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.name_completion import pod_names
from userspace_cni.cli.routes.asking import ask, pod_name, tell_problems
from userspace_cni.cli.site import CommandRefused, NodeCommand, open_site
from userspace_cni.cli.view import Cell
from userspace_cni.routes.cluster_facts import title_of
from userspace_cni.routes.inspection import see_routes
from userspace_cni.routes.passes import RESYNC_S
from userspace_cni.routes.places import is_called

_COUNTED: Final = ("matched", "applied", "skipped", "failed")
_ROUTES: Final = ("ROUTE", "STATE", "PODS", "APPLIED", "SKIPPED", "FAILED", "DETAILS")
_PODS: Final = ("POD", "STATE", "ROUTES", "DETAILS")
_EACH: Final = ("POD", "STATE", "ROUTE", "DETAILS")
_TOLD: Final = (("skipped", "yellow"), ("refused", "red"), ("conflicts", "yellow"))
_POD_STYLES: Final = {"applied": "green", "failed": "red", "missing": "red", "skipped": "yellow"}
_REASONS_MAX: Final = 5
"""Of one Route or pod in a table of many: --json has all."""


@click.command(
    "list",
    cls=NodeCommand,
    examples=(
        "userspace-cni routes list",
        "userspace-cni routes list --pod default/web-0",
    ),
)
@click.option(
    "--pod",
    callback=pod_name,
    shell_complete=pod_names,
    metavar="NAMESPACE/NAME",
    help="Only what concerns this pod, with each route.",
)
@click.option("--all", "each_route", is_flag=True, help="Each route of each pod.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def list_command(ctx: click.Context, pod: str, each_route: bool, as_json: bool) -> None:
    """List the Routes with their pods on this node; and the pods, with how many routes of ours they have, and how many are
    skipped, refused or in conflict. For one pod, or with --all, each route is listed, whether it is there, and why.

    It asks the agent for the Routes and pods, and looks into the pods: a route that has been removed or replaced since the agent
    last checked the pod is shown as missing. Exit code: 0, also when something is refused; 1 when the agent
    knows no pod of that name; 2 when routes are off; 3 when no agent answers.
    """
    site = open_site(ctx)
    with view.progress("asking the agent, and looking into the pods"):
        found: dict[str, Any] = ask(site)
        if pod:
            found = _of(found, pod)
        found |= {"pods": list(see_routes(site.drivers.installation, found["pods"]))}
    if as_json:
        view.show_json(found)
    else:
        _show(found, pod, each_route=each_route or bool(pod))


def _of(found: Mapping[str, Any], pod: str) -> dict[str, Any]:
    """What concerns the pod. Raises Refused where there is none."""
    pods = [each for each in found["pods"] if is_called(pod, each["namespace"], each["name"], each["sandbox"])]
    if not pods:
        why = "; ".join(f"{source}: {problem}" for source, problem in found["problems"].items())
        raise CommandRefused(f"the agent knows no network namespace of pod {pod} on this node{why and f'; {why}'}", FOUND)
    names = {name for each in pods for name in each["routes"]}
    return {**found, "routes": [each for each in found["routes"] if each["name"] in names], "pods": pods}


def _show(found: Mapping[str, Any], pod: str, *, each_route: bool) -> None:
    """Two tables on stdout: Routes, then pods."""
    lost = Counter(name for each in found["pods"] for name in {one["route"] for one in _lost(each)})
    if found["routes"]:
        view.show_table(_ROUTES, [row for each in found["routes"] for row in _route_rows(each, lost[each["name"]])])
    elif not found.get("rounds", 1):
        view.note("the agent has just started, or waits for the API server: it has checked no pod yet")
    else:
        view.note(f"no Route concerns {pod}" if pod else "there is no Route")
    pods = [each for each in found["pods"] if pod or _is_concerned(each)]
    rows = [row for each in pods for row in _pod_rows(each)] if each_route else [_sum(each) for each in _failed_first(pods)]
    if rows:
        if found["routes"]:
            click.echo()
        view.show_table(_EACH if each_route else _PODS, rows)
    elif found["routes"]:
        view.note("no pod of this node is concerned")
    if rows and not each_route:
        view.note("--pod NAMESPACE/NAME lists each route of a pod, --all of all")
    if lost:
        pods_lost = view.format_count(sum(bool(_lost(each)) for each in found["pods"]), "pod")
        when = f"the agent looks at each pod every {RESYNC_S / 60:g} minutes, and at all of them on SIGHUP"
        view.note(f"routes are missing in {pods_lost}: {when}")
    tell_problems(found["problems"])
    if unreadable := found.get("unreadable"):
        view.note(f"{view.format_count(unreadable, 'file')} of the runtime's cache could not be used")


def _lost(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The desired routes that are not in force in the pod now, beside those that the kernel refused."""
    lost = [each for each in pod["wanted"] if each["now"] in ("missing", "behind")]
    return [each for each in lost if not any(said.startswith(f"{_route_text(each)}: ") for said in pod["refused"])]


def _route_rows(route: Mapping[str, Any], lost: int) -> Iterator[list[Cell | str]]:
    """A row, and one more for each reason after the first. `lost`: how many pods lack a route of it now."""
    counts, name = route["pods"], str(route["name"])
    wrong = [*route["problems"], *(each.removeprefix(f"{name}: ") for each in route["told"])]
    wrong += [f"missing in {view.format_count(lost, 'pod')}"] if lost else []
    if not route["usable"]:
        state = Cell("unusable", "red")
    elif wrong or counts.get("failed"):
        state = Cell("in part", "yellow")
    else:
        state = Cell("good", "green")
    first, *more = _bounded([*wrong, *route["remarks"]]) or [""]
    yield [name, state, *(str(counts.get(each, 0)) for each in _COUNTED), first]
    for each in more:
        yield [name, "", *("" for _ in _COUNTED), each]


def _bounded(reasons: Sequence[str]) -> list[str]:
    """The reasons, of many the first ones."""
    left = len(reasons) - _REASONS_MAX
    return [*reasons] if left <= 1 else [*reasons[:_REASONS_MAX], f"and {left} more: --json has them"]


def _is_concerned(pod: Mapping[str, Any]) -> bool:
    return bool(pod["routes"] or pod["wanted"] or pod["problem"] or any(pod[key] for key, _ in _TOLD))


def _failed_first(pods: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(pods, key=lambda each: each["state"] != "failed" and not _lost(each))


def _sum(pod: Mapping[str, Any]) -> list[Cell | str]:
    """The row of a pod among many: how many routes, and the first of what went wrong."""
    if pod["host_network"]:
        return [_name(pod), Cell("left alone", "dim"), "", "it has the node's own network"]
    rows = list(_pod_rows(pod))
    states = [row[1].text for row in rows if isinstance(row[1], Cell)]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states) if state != "failed"]
    wrong = [each for each in (pod["problem"], *map(_lost_text, _lost(pod)), *pod["refused"], *pod["conflicts"]) if each]
    wrong = wrong or ([] if pod["wanted"] else [each.partition(": ")[2] for each in pod["skipped"]])
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    state = "missing" if _lost(pod) and pod["state"] != "failed" else pod["state"]
    return [
        _name(pod),
        Cell(state, _POD_STYLES.get(state, "")),
        view.join(counts),
        f"{wrong[0]}{more}" if wrong else "",
    ]


def _pod_rows(pod: Mapping[str, Any]) -> Iterator[list[Cell | str]]:
    """A row for each desired route in the pod, and for each problem of it."""
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
        if each["now"] == "there":
            yield [name, Cell("there", "green"), each["route"], f"{text} ({each['why']})"]
        elif reasons:
            yield [name, Cell("refused", "red"), each["route"], f"{reasons[0]} (by the kernel)"]
        elif each["now"]:
            yield [name, Cell(each["now"], "red"), each["route"], _lost_text(each)]
        else:
            yield [name, Cell("wanted", "yellow"), each["route"], f"{text} ({each['why']}); not seen now: {pod['unseen']}"]
    for key, style in _TOLD:
        for said in refused if key == "refused" else pod[key]:
            of, _, text = said.partition(": ")
            if " dev " in of:  # a route that the kernel refuses to remove: no Route asks for it
                of, text = "", f"{said} (by the kernel)"
            yield [name, Cell(key.removesuffix("s"), style), of, text]


def _lost_text(wanted: Mapping[str, Any]) -> str:
    """How the pod lacks the route now."""
    text, instead = _route_text(wanted), wanted["instead"]
    if wanted["now"] == "behind":
        return f"{text} ({wanted['why']}); another program's {instead} comes before it"
    return f"{text} ({wanted['why']})" + (f"; another program's {instead} is in its place" if instead else "")


def _route_text(wanted: Mapping[str, Any]) -> str:
    """The route as ip(8) shows it, short."""
    dst = "default" if wanted["dst"].startswith("default") else wanted["dst"]
    return f"{dst}{' via ' + wanted['via'] if wanted['via'] else ''} dev {wanted['dev']}"


def _name(pod: Mapping[str, Any]) -> str:
    return title_of(pod["namespace"], pod["name"], pod["sandbox"])
