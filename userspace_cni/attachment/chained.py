"""The verbs of the chained plugins that make a port the source or the output of mirrors (`cni/mirror_chain`).

They have no attachment of their own: ADD amends the one of the same container and interface, which the plugin before them in the
chain has made. So what they give ends with that port; their DEL has nothing to do, and neither has GC. The
port is the caller's own, by container and interface: what `prevResult` names is never looked up in the switch, for a network
could name another pod's port in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.apply import await_turn
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, NotAttached
from userspace_cni.base.mirrors import MIRRORS_MAX
from userspace_cni.cni.mirror_chain import ChainedPart, read_part
from userspace_cni.cni.request import Request, Verb
from userspace_cni.cni.result import build, encode, find_interface, read_prev_result

if TYPE_CHECKING:
    from userspace_cni.attachment.node import Node
    from userspace_cni.attachment.records import Record


_ONE_PART: Final = "what an output sends is dropped: a port is either a source, or the output, of any number of mirrors"


def serve(request: Request, node: Node) -> bytes:
    """What stdout is given for this call of a chained plugin. Raises UserspaceError."""
    return _VERBS[request.environment.verb](request, node)


def _add(request: Request, node: Node) -> bytes:
    environment, version = request.environment, request.network.version
    part, previous = _read(request, node)
    node.pods.require_mirrors(environment, [each.name for each in part.sources], part.outputs)
    deadline = Deadline.after(node.service.deadline_s, "deadline_s")
    with await_turn(environment.container_id, environment.ifname, node.store, node.driver, deadline) as turn:
        record, port = _attached(turn.read(), request, part)
        wanted = _with_part(port, part)
        if wanted != port:
            turn.amend(record, tuple(wanted if step is port else step for step in record.steps), deadline)
    return encode(build(version, (), prev_result=previous))


def _check(request: Request, node: Node) -> bytes:
    environment = request.environment
    part, _ = _read(request, node)
    _, port = _attached(node.store.journal.read(environment.container_id, environment.ifname), request, part)
    missing = {each.name for each in part.sources} - {each.name for each in port.mirrors}
    missing |= set(part.outputs) - set(port.mirror_outputs)
    if missing:
        raise NotAttached(
            f"port {port.name} has no part in mirror {', '.join(sorted(missing))}",
            f"ADD of {request.network.raw['type']} gives it",
        )
    drifts = node.driver(port).check(port, Deadline.after(node.service.deadline_s, "deadline_s"))
    if drifts:
        from userspace_cni.attachment.drift import refusal

        raise refusal(drifts)
    return b""


def _nothing(request: Request, node: Node) -> bytes:  # noqa: ARG001 - the interface
    return b""


def _read(request: Request, node: Node) -> tuple[ChainedPart, Mapping[str, object]]:
    """The part, and the previous plugin's result, which has the container's interface."""
    environment, network = request.environment, request.network
    part, raw = read_part(network), network.raw.get("prevResult")
    if raw is None:
        raise InvalidConfig(
            f"plugin {network.raw['type']} needs key 'prevResult'", "it comes after the plugin 'userspace' in a list of plugins"
        )
    node.sandboxes.inode(environment)
    previous = read_prev_result(raw, network.version)
    if find_interface(previous, environment.ifname, environment.netns) is None:
        raise NotAttached(
            f"prevResult has no interface {environment.ifname} in sandbox {environment.netns}", "which plugin comes before?"
        )
    return part, previous


def _attached(record: Record | None, request: Request, part: ChainedPart) -> tuple[Record, OvsPort]:
    """The living attachment of the call's container and interface, and its port, on the bridge that the part names."""
    environment, kind = request.environment, request.network.raw["type"]
    port = record.port if record is not None and record.state == "ready" else None
    if record is None or port is None:
        raise NotAttached(
            f"plugin {kind}: interface {environment.ifname} of container {environment.container_id} has no port of this plugin",
            "it takes a port that the plugin 'userspace' has made before it in the same list; those of ovs-cni are not ours",
        )
    if part.bridge and port.bridge != part.bridge:
        raise InvalidConfig(f"key 'bridge' is {part.bridge!r}, and the port is on {port.bridge!r}", "they must be the same")
    return record, port


def _with_part(port: OvsPort, part: ChainedPart) -> OvsPort:
    """The port with what the part adds: to its terms, too, so that it holds beside what the pod says of mirrors later.

    Raises InvalidConfig for a port that would be both source and output, or of more mirrors than there can be.
    """
    if part.outputs:
        if port.mirrors:
            raise InvalidConfig(
                f"port {port.name} is to be the output of mirror {part.outputs[0]!r}, and is a source of mirror "
                f"{port.mirrors[0].name!r}",
                _ONE_PART,
            )
        outputs = tuple(dict.fromkeys((*port.mirror_outputs, *part.outputs)))
        if len(outputs) > MIRRORS_MAX:
            raise InvalidConfig(
                f"port {port.name} is to be the output of {len(outputs)} mirrors", f"it can be of {MIRRORS_MAX} at most"
            )
        return replace(port, mirror_outputs=outputs)
    if part.sources and port.mirror_outputs:
        raise InvalidConfig(
            f"port {port.name} is to be a source of mirror {part.sources[0].name!r}, and is the output of "
            f"{port.mirror_outputs[0]!r}",
            _ONE_PART,
        )
    named = {each.name for each in part.sources}
    others = [[each for each in given if each.name not in named] for given in (port.mirrors, port.terms.mirrors)]
    terms = replace(port.terms, mirrors=(*others[1], *part.sources))
    return replace(port, mirrors=(*others[0], *part.sources), terms=terms)


_VERBS: Final[Mapping[Verb, Callable[[Request, Node], bytes]]] = {
    "ADD": _add,
    "DEL": _nothing,
    "CHECK": _check,
    "GC": _nothing,
    "STATUS": _nothing,
}
