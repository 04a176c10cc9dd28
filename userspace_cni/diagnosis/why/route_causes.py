"""What of the routes that Route objects ask for in the pod can be the cause. Pure."""

from __future__ import annotations

import shlex
from typing import Final

from userspace_cni.diagnosis.why.attachment_sight import AttachmentSight, Findings, known

_SHOWN: Final = 3


def judge_routes(sight: AttachmentSight) -> Findings:
    """Whether the pod has the routes of Route objects, and whether an agent keeps them."""
    routes = known(sight.routes)
    if routes is None:
        return
    record = sight.record
    pod = shlex.quote("/".join(filter(None, (record.pod_namespace, record.pod_name))))
    if routes.off:
        named = ", ".join(routes.off[:_SHOWN])
        message = f"Route {named} asks for routes in this pod, and routes in pods are off on this node"
        remedy = "set routes = true in the node's settings, and restart the agent (docs/routes.md)"
        yield sight.found("routes-off", message, remedy, "the pod has none of these routes")
    agent = known(sight.agent)
    now = f"`kill -HUP {agent.pid}` has the agent make it again at once; else " if agent and agent.pid else ""
    for route in routes.lost[:_SHOWN]:
        other = f"; another program's {route.instead} is in its place" if route.instead else ""
        message = f"the pod lacks the route {route.text}, for which Route '{route.asked_by}' asks{other}"
        cause = f"a program in the pod that sets {route.instead}" if route.instead else "a program in the pod that removes it"
        remedy = (
            f"{now}the agent makes it again by itself when it next looks at the pod, within ten minutes; if it is lost again, "
            f"find {cause}; `userspace-cni routes explain {pod} {route.target}` says where its packets go"
        )
        yield sight.found("pod-route-missing", message, remedy, "packets to there take another way, or none")
    if routes.problem:
        message = f"the agent cannot keep the pod's routes: {routes.problem}"
        yield sight.found("pod-routes-failed", message, f"`userspace-cni routes list --pod {pod}`")
    for each in routes.refused[:_SHOWN]:
        yield sight.found(
            "pod-route-refused", f"a route of a Route object is refused: {each}", f"`userspace-cni routes list --pod {pod}`"
        )
    if routes.wanted and not (routes.lost or routes.problem or routes.refused):
        yield sight.well(
            "routes", f"{routes.wanted} routes of Route objects" if routes.wanted > 1 else "the route of a Route object"
        )
