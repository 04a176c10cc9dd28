"""The routes of Route objects in one pod, when a person asks why its network does not work. Nothing is changed there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.routes.cluster_facts import RoutePod
from userspace_cni.routes.inspection import see_routes
from userspace_cni.routes.passes import routes_of
from userspace_cni.routes.reports import read_wanted
from userspace_cni.routes.routes_service import read_kept, read_routes_file
from userspace_cni.routes.rules import Rulebook

if TYPE_CHECKING:
    from userspace_cni.node.installation import Installation

_LOST: Final = ("missing", "behind")


@dataclass(frozen=True)
class LostRoute:
    """A route that a pod is to have and does not have in force. `target`: its destination; `instead`: another program's, "" for
    none."""

    text: str
    target: str
    asked_by: str
    instead: str = ""


@dataclass(frozen=True)
class SeenRoutes:
    """`off`: the Routes that select the pod, where routes are off on the node; `wanted`: how many the pod is to have; `problem`:
    why the agent could not look at it; `refused`: what the kernel or the rules refuse of them."""

    off: tuple[str, ...] = ()
    wanted: int = 0
    lost: tuple[LostRoute, ...] = ()
    problem: str = ""
    refused: tuple[str, ...] = ()


def see_pod_routes(told: Mapping[str, Any], sandbox: str, here: Installation) -> SeenRoutes | None:
    """What the agent tells of the sandbox (`AgentClient.routes`), with a look at what it has now; None where nothing is asked."""
    pod = next((each for each in told["pods"] if each["sandbox"] == sandbox), None)
    if pod is None or not (pod["routes"] or pod["wanted"] or pod["problem"]):
        return None
    [seen] = see_routes(here, [pod])
    wanted = [(each, read_wanted(each)) for each in seen["wanted"]]
    lost = [
        LostRoute(str(route), str(route.dst), each["route"], each["instead"]) for each, route in wanted if each["now"] in _LOST
    ]
    return SeenRoutes((), len(wanted), tuple(lost), str(pod["problem"] or seen["unseen"]), tuple(pod["refused"]))


def see_asked_routes(namespace: str, name: str, uid: str, here: Installation) -> SeenRoutes | None:
    """The Routes that select the pod, by the file and by what an agent knew last, where none keeps any now; None for none. Raises
    UserspaceError."""
    kept = read_kept(here)
    known = replace(kept, from_file=read_routes_file(here))
    pod = kept.pods.get(uid) or RoutePod(namespace, name, uid)
    book = Rulebook(routes_of(known), known.services, known.cluster, here.settings.route_exclude_namespaces)
    asked = book.claims(pod).routes
    return SeenRoutes(off=asked) if asked else None
