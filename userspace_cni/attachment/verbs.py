"""The CNI verbs.

Every verb is a fold over the steps of an attachment (see docs/architecture.md). A failed ADD is a DEL. Nothing here knows OVS,
the file system or the API server; the node does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment import cleanup
from userspace_cni.attachment.apply import Failure, Turn, await_turn, try_turn
from userspace_cni.attachment.records import Record, record_key
from userspace_cni.attachment.steps import Lease, owner_kind
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import (
    AlreadyAttached,
    DelegateFailed,
    InvalidConfig,
    NotAttached,
    NotServing,
    RecordRefused,
    Unavailable,
    UserspaceError,
    combine,
)
from userspace_cni.base.log import about, bind, learn, say, timed
from userspace_cni.base.notices import KEY_IGNORED, give
from userspace_cni.base.stages import stage
from userspace_cni.cni.call import PostponedCall
from userspace_cni.cni.former_network import VERSIONS, first_form
from userspace_cni.cni.mirror_chain import is_chained
from userspace_cni.cni.options import Options, read_log_level, read_options, warn_of_role
from userspace_cni.cni.request import (
    Called,
    Network,
    Request,
    Verb,
    valid_attachments,
)
from userspace_cni.cni.result import (
    ResultAddresses,
    build,
    encode,
    find_interface,
    read_addresses,
    read_prev_result,
)

if TYPE_CHECKING:
    from userspace_cni.attachment.facts import Facts
    from userspace_cni.attachment.node import Node

STATUS_S: Final = 2.0
FINISH_S: Final = 0.2


@dataclass(frozen=True)
class _Adding:
    """An ADD whose configuration is good."""

    request: Request
    options: Options
    called: Called
    previous: Mapping[str, Any] | None
    netns_inode: int
    deadline: Deadline


def serve(request: Request, node: Node, called: Called | None = None) -> bytes:
    """What stdout is given for this call, which was `called` then, else now.

    Raises UserspaceError; on a node whose process lives on also Postponed, for an ADD that has to wait for its pod.
    """
    with _logging(request, node), timed("answered"):
        if is_chained(request.network):
            from userspace_cni.attachment import chained

            return chained.serve(request, node)
        return _VERBS[request.environment.verb](request, node, called or Called(node.store.boot_id(), node.store.boottime_ns()))


def _logging(request: Request, node: Node) -> AbstractContextManager[None]:
    """Log as much as the network says, else the node."""
    return bind(read_log_level(request.network.raw) or node.service.log_level)


def _add(request: Request, node: Node, called: Called) -> bytes:
    deadline = Deadline.after(node.service.deadline_s, "deadline_s")
    netns_inode = node.sandboxes.inode(request.environment)
    request = node.addresses.complete(request, deadline)
    options = node.pods.read_options(request, partial(give, KEY_IGNORED))
    raw_previous = request.network.raw.get("prevResult")
    previous = read_prev_result(raw_previous, request.network.version) if raw_previous is not None else None
    if request.network.ipam:
        node.addresses.require_delegate(request)
    adding = _Adding(request, options, called, previous, netns_inode, deadline)
    awaited = node.pods.begin_gathering(request, options, node.pods.consumers[options.consumer], deadline).find_awaited()
    if awaited is None:
        return _attach(adding, node)

    began = time.perf_counter()

    def proceed() -> bytes:
        with _logging(request, node), timed("answered"):
            awaited.settle()
            say("debug", "waited for the pod's annotations", ms=f"{(time.perf_counter() - began) * 1000:.1f}")
            return _attach(replace(adding, netns_inode=node.sandboxes.inode(request.environment)), node)

    if node.service.resident:
        raise PostponedCall((request.environment.container_id, request.environment.ifname), awaited, proceed)
    return proceed()


def _attach(adding: _Adding, node: Node) -> bytes:
    """ADD from its first effect on: it never waits for a tenant."""
    request, options, called, deadline = adding.request, adding.options, adding.called, adding.deadline
    environment, journal = request.environment, node.store.journal
    consumer = node.pods.consumers[options.consumer]
    cleanup.drain(node.store, node.sandboxes, node.addresses, deadline)
    cleanup.settle(node.store, node.driver, node.switch, node.sandboxes, deadline)
    with (
        await_turn(environment.container_id, environment.ifname, node.store, node.driver, deadline) as turn,
        ExitStack() as until_begun,
    ):
        _make_room(request, node, turn, deadline)
        gathering = node.pods.begin_gathering(request, options, consumer, deadline)
        if gathering.chooses:
            until_begun.enter_context(journal.choice_lock(environment.container_id, deadline))
        with stage("plan"), timed("read pod, annotations and bridge"):
            facts = gathering.facts(adding.netns_inode)
        record = _new_record(request, facts, called)
        try:
            addresses = facts.addresses
            if request.network.ipam:
                lease = _lease_step(request)
                record = record.to("pending", steps=(lease,))
                journal.write(record)
                try:
                    with stage("ipam"), timed("leased addresses", ipam=request.network.ipam):
                        leased = node.addresses.lease(lease, deadline, turn.share_lock())
                except DelegateFailed:
                    record = record.to("pending", steps=(replace(lease, granted=False),))
                    raise
                record = record.to("pending", steps=(replace(lease, granted=True),))
                addresses = read_addresses(leased, request.network.version)
                _require_asked_ips(addresses, options, request)
            with stage("plan"):
                from userspace_cni.attachment.plan import plan  # a refused call pays for none

                attachment = plan(request, options, consumer, facts, addresses)
            if attachment.ovs_role:
                warn_of_role(attachment.ovs_role, options.application.mode, partial(give, KEY_IGNORED), partial(say, "warning"))
            planned = record.to("applying", steps=record.steps + attachment.steps)
            if planned.port:
                until_begun.enter_context(node.switch.ports.announce(planned.port.name))
            foreseen, rivals = turn.foresee(planned)
            if rivals:
                cleanup.remove_rivals(planned, rivals, node.store, node.driver, node.sandboxes, deadline)
                foreseen, _ = turn.foresee(planned)
            record = foreseen
            journal.write(record)
            rests = turn.begin(record, record.steps, deadline)
            until_begun.close()  # what was chosen is in lists of holders and rows
            turn.settle(rests)
            result = build(request.network.version, attachment.interfaces, addresses, options.dns, adding.previous)
            journal.advance(record.to("ready", result=result))
        except BaseException as error:
            cleanup.roll_back(record, turn, error, deadline)
            raise
    _finish(node)
    return encode(first_form(result) if request.network.version in VERSIONS else result)


def _make_room(request: Request, node: Node, turn: Turn, deadline: Deadline) -> None:
    """Refuse a second attachment of the name; undo what an earlier ADD left unfinished, or what a spooled DEL names."""
    environment = request.environment
    try:
        key = record_key(environment.container_id, environment.ifname)
        cleanup.drain_one(key, node.store, node.sandboxes, node.addresses)
    except RecordRefused as error:
        raise Unavailable("a DEL of this interface, called before, cannot be recorded", str(error)) from error
    record = turn.read()
    if record and not cleanup.is_unfinished(record, node.store.boot_id()):
        raise AlreadyAttached(
            f"interface {environment.ifname} of container {environment.container_id} is attached already",
            f"to network '{record.network}', until its DEL, which takes the network from a running pod",
        )
    if record:
        failures = turn.remove(record, deadline)
        if failures:
            raise combine("undoing what an earlier ADD left", [failure.error for failure in failures])
    if node.sandboxes.has_link(environment):
        raise AlreadyAttached(
            f"interface {environment.ifname} exists in the container already", f"a kernel interface in {environment.netns}"
        )


def _new_record(request: Request, facts: Facts, called: Called) -> Record:
    environment = request.environment
    return Record(
        state="pending",
        network=request.network.name,
        container_id=environment.container_id,
        ifname=environment.ifname,
        netns=environment.netns,
        netns_inode=facts.netns_inode,
        boot_id=facts.boot_id,
        boottime_ns=called.boottime_ns,
        pod_namespace=facts.pod.namespace,
        pod_name=facts.pod.name,
        pod_uid=facts.pod.uid,
    )


def _lease_step(request: Request) -> Lease:
    return Lease(request.network.ipam, request.stdin.decode("utf-8"), request.environment.variables)


def _require_asked_ips(addresses: ResultAddresses, options: Options, request: Request) -> None:
    """Raise InvalidConfig unless the addresses that the pod asked for are among those it got."""
    granted = {ip["address"] for ip in addresses.ips} | {ip["address"].partition("/")[0] for ip in addresses.ips}
    refused = [ip for ip in options.asked.ips if ip not in granted]
    if refused:
        raise InvalidConfig(
            f"key 'runtimeConfig.ips' asks for {', '.join(refused)}, the IPAM plugin '{request.network.ipam}' gave others",
            f"it gave {', '.join(sorted(ip['address'] for ip in addresses.ips))}",
        )


def _delete(request: Request, node: Node, called: Called) -> bytes:
    environment = request.environment
    deadline = Deadline.after(node.service.deadline_s, "deadline_s")
    cleanup.drain(node.store, node.sandboxes, node.addresses, deadline)
    with await_turn(environment.container_id, environment.ifname, node.store, node.driver, deadline) as turn:
        record = turn.read()
        learn(pod=record.subject["pod"] if record else "")
        if record and record.network != request.network.name:
            say("info", "the interface belongs to another network and is left alone", recorded=record.network)
            return b""
        if record and cleanup.is_newer(record, called, node.store):
            say("info", "the interface was attached after this DEL was called and is left alone")
            return b""
        record = record or cleanup.reconstruct_record(
            environment.container_id, environment.ifname, request.network.name, node.store, node.sandboxes
        )
        try:
            failures = turn.remove(record, deadline)
        except RecordRefused as error:
            raise Unavailable("what this DEL has to undo cannot be recorded", str(error)) from error
        if not record.boot_id and request.network.ipam:
            failures += turn.undo_unrecorded(_lease_step(node.addresses.as_leased(request)), deadline)
    _raise_for([failure for failure in failures if not _is_postponed(failure)], "DEL")
    if not failures:  # with failures the switch does not answer, and no other attachment can be finished either
        _finish(node)
    return b""


def _is_postponed(failure: Failure) -> bool:
    """Whether DEL may succeed without this step: OVS does not answer now, and the record durably says `deleting`."""
    return failure.step.postponable and isinstance(failure.error, Unavailable)


def _raise_for(failures: list[Failure], what: str) -> None:
    """Raise the failures as one error, "try again" where the store takes no writes now: the record still holds those steps."""
    errors = [failure.error for failure in failures]
    if errors:
        raise combine(
            what, [Unavailable(error.message, error.details) if isinstance(error, RecordRefused) else error for error in errors]
        )


def _check(request: Request, node: Node, called: Called) -> bytes:  # noqa: ARG001
    environment = request.environment
    node.sandboxes.inode(environment)
    raw = request.network.raw.get("prevResult")
    if raw is None:
        raise InvalidConfig("CHECK needs key 'prevResult'", "the runtime has no cached result of this attachment")
    previous = read_prev_result(raw, request.network.version)
    told = find_interface(previous, environment.ifname, environment.netns)
    if told is None:
        raise NotAttached(
            f"prevResult has no interface {environment.ifname} in sandbox {environment.netns}",
            "it is not from ADD of this attachment",
        )
    record = node.store.journal.read(environment.container_id, environment.ifname)
    if record is None or record.network != request.network.name or record.state != "ready":
        state = "none" if record is None else f"one of network '{record.network}' in state '{record.state}'"
        raise NotAttached(
            f"interface {environment.ifname} of container {environment.container_id} is not attached",
            f"expected a record in state 'ready', found {state} in {node.store.journal.directory}",
        )
    deadline = Deadline.after(node.service.deadline_s, "deadline_s")
    drifts = [drift for step in record.steps for drift in node.driver(step).check(step, deadline)]
    if drifts:
        from userspace_cni.attachment.drift import refusal, without_told

        if left := without_told(drifts, f"interface {environment.ifname}", told):
            raise refusal(left)
    node.addresses.forward("CHECK", node.addresses.as_leased(request, record.lease), deadline)
    return b""


def _status(request: Request, node: Node, called: Called) -> bytes:  # noqa: ARG001
    deadline = Deadline.after(STATUS_S)
    try:
        request = node.addresses.complete(request, deadline)
    except Unavailable as error:
        raise NotServing(error.message, error.details) from error
    options = read_options(request, node.pods.consumers, lambda text: say("debug", text))
    node.switch.require_serving(options, deadline)
    node.addresses.forward("STATUS", request, deadline)
    return b""


def _gc(request: Request, node: Node, called: Called) -> bytes:  # noqa: ARG001
    valid = valid_attachments(request.network)
    if valid is None:
        raise InvalidConfig(
            "GC needs key 'cni.dev/valid-attachments'", "without it every attachment would count as stale: nothing was removed"
        )
    deadline = Deadline.after(node.service.deadline_s, "deadline_s")
    cleanup.drain(node.store, node.sandboxes, node.addresses, deadline)
    errors = _collect_records(request.network, valid, node, deadline.half())
    try:
        errors += _collect_rows(request.network, valid, node, deadline.half())
    except UserspaceError as error:
        errors.append(error)
    try:
        if not request.network.subnet:  # other networks may have leases of the Subnet, of which this list says nothing
            node.addresses.forward("GC", request, deadline)
    except UserspaceError as error:
        errors.append(error)
    if errors:
        raise combine("GC", errors)
    node.switch.sweep()
    _finish(node)
    return b""


def _collect_records(network: Network, valid: frozenset[tuple[str, str]], node: Node, deadline: Deadline) -> list[UserspaceError]:
    errors: list[UserspaceError] = []
    for record in node.store.journal.records():
        of_network = record.owner == "pod" and record.network == network.name
        if of_network and (record.container_id, record.ifname) not in valid:
            with about(record.subject):
                errors += _collect(record, node, deadline)
    return errors


def _collect_rows(network: Network, valid: frozenset[tuple[str, str]], node: Node, deadline: Deadline) -> list[UserspaceError]:
    """Remove ports with our marks whose record is lost."""
    errors: list[UserspaceError] = []
    identity = node.store.journal.identity()
    for port in node.switch.list_marked(network.name, deadline):
        container_id, ifname = port.marks.get("container-id", ""), port.marks.get("ifname", "")
        if owner_kind(port.marks) != "pod" or (container_id, ifname) in valid or node.store.journal.read(container_id, ifname):
            continue
        if port.marks.get("store") != identity:
            say(
                "warning",
                "a port of another installation's state directory is left alone",
                port=port.name,
                store=port.marks.get("store"),
            )
            continue
        steps = cleanup.traces(container_id, ifname, [port], node.store, node.sandboxes)
        record = Record("deleting", network.name, container_id, ifname, steps=steps)
        with about(record.subject):
            errors += _collect(record, node, deadline, recorded=False)
    return errors


def _collect(record: Record, node: Node, deadline: Deadline, *, recorded: bool = True) -> list[UserspaceError]:
    """Remove a stale attachment unless another call works on it right now."""
    try:
        with try_turn(record.container_id, record.ifname, node.store, node.driver) as turn:
            current = turn.read() if turn else None
            if turn is None or recorded == (current is None):
                return []
            say("info", "collecting a stale attachment")
            failures = turn.remove(current or record, deadline)
    except UserspaceError as error:
        return [error]
    return [failure.error for failure in failures]


def _finish(node: Node) -> None:
    """Finish what earlier processes left, if this one has no tick. The verb has succeeded: nothing here may fail it."""
    if node.service.resident:
        return
    try:
        cleanup.finish(node.store, node.driver, Deadline.after(FINISH_S))
    except UserspaceError as error:  # an interrupt
        say("warning", "finishing earlier work was cut short", error=error)


_VERBS: Final[Mapping[Verb, Callable[[Request, Node, Called], bytes]]] = {
    "ADD": _add,
    "DEL": _delete,
    "CHECK": _check,
    "GC": _gc,
    "STATUS": _status,
}
