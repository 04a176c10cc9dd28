"""What between the switch's port and the pod's application can be the cause: directory, mounts, socket, application. Pure."""

from __future__ import annotations

import shlex
from typing import Final

from userspace_cni.attachment.drift import Absent, Dead, Drift, Hidden, Other, Unfollowed, sentence
from userspace_cni.attachment.listing import select_status
from userspace_cni.attachment.records import Record
from userspace_cni.base.errors import quote
from userspace_cni.base.findings import Finding
from userspace_cni.diagnosis.why.attachment_sight import AttachmentSight, Findings, known
from userspace_cni.node.pod_processes import VhostArgument
from userspace_cni.node.seen_pod import SeenContainer

_UNDER_MOUNT: Final = "a regular file in its place"
_PROPAGATION: Final = "give the container's volumeMount 'mountPropagation: HostToContainer', and recreate the pod"
_RECREATE: Final = "recreate the pod"
_SHOWN: Final = 3
_BY_SIGNAL: Final = 128
"""Exit codes above it are of a process that a signal has ended."""
_DOES: Final = {"server": "makes the socket", "client": "connects to the socket"}


def judge_directory(sight: AttachmentSight) -> Findings:
    """The pod's directory, and the mount through which the switch sees it."""
    step, mount = sight.record.directory, sight.record.mount
    if step is None:
        return
    gone = [each for each in sight.drifts.get(step.kind, ()) if not each.field]
    changed = [each for each in sight.drifts.get(step.kind, ()) if each.field]
    if gone:
        message = f"the pod's directory for its socket is gone: {step.path}"
        yield sight.found("directory-missing", message, _RECREATE, why="no socket can be in it")
    elif changed:
        message = "; ".join(map(sentence, changed))
        remedy = "a running agent puts it back; else `userspace-cni gc`"
        yield sight.found(
            "directory-changed", message, remedy, why="switch or application may not use the socket", severity="warning"
        )
    drifts = sight.drifts.get(mount.kind, ()) if mount else ()
    for each in drifts:
        target = shlex.quote(mount.target) if mount else ""
        remount = f"`umount -l {target}`; then `userspace-cni gc` mounts it again"
        absent = isinstance(each.found, Absent)
        remedy = "`userspace-cni gc` mounts it again" if absent else remount
        said = f"{mount.target if mount else ''}, through which the switch sees the pod's directory"
        message = f"the mount {said}, is gone" if absent else f"the mount {said}, is not what it was: {sentence(each)}"
        why = "the switch cannot connect to the application's socket"
        yield sight.found("mount-missing" if absent else "mount-changed", message, remedy, why=why)
    if not gone and not drifts:
        yield sight.well("directory", "the socket's directory" + (" and its mount" if mount else ""))


def judge_socket(sight: AttachmentSight) -> Findings:
    """The name of the socket: what is in its place, and whether the pod's processes see it."""
    socket = sight.record.socket
    if socket is None:
        return
    for each in dict.fromkeys(sight.drifts.get(socket.kind, ())):
        if isinstance(each.found, Dead):
            yield _dead(sight, each)
        elif isinstance(each.found, Unfollowed):
            message = f"{each.subject}, is on a mount that does not follow the host's"
            why = "the pod loses the socket with the next restart of ovs-vswitchd"
            yield sight.found("mount-unfollowed", message, _PROPAGATION, why=why, severity="warning")
        elif isinstance(each.found, Hidden):
            yield _unseen(sight, each.subject, each.found)
        elif isinstance(each.found, Other):
            remedy = f"find out what made it, and remove it: `rm {shlex.quote(socket.path)}`; then start the application again"
            yield sight.found("socket-occupied", sentence(each), remedy, why="no socket can have that name")
        else:
            remedy = "`userspace-cni gc` places it again, if the switch has made it"
            yield sight.found("socket-missing", sentence(each), remedy, why="the application cannot connect")


def _dead(sight: AttachmentSight, drift: Drift) -> Finding:
    socket = sight.record.socket
    path = socket.path if socket else drift.subject
    if socket and socket.from_switch:
        message = f"the socket {path} is dead: the ovs-vswitchd that made it has ended"
        remedy = "`userspace-cni gc` places the socket of the present one; then the application has to connect again"
        return sight.found("socket-dead", message, remedy, why="the application cannot connect")
    message = f"the application was killed and left its socket {path}: no process listens there"
    remedy = f"`userspace-cni gc` removes it, as a running agent does; {_restart(sight)}"
    return sight.found("socket-dead", message, remedy, why="the next application cannot bind to that name")


def _unseen(sight: AttachmentSight, subject: str, found: Hidden) -> Finding:
    there = "the file on which it was mounted" if found.words == _UNDER_MOUNT else found.words
    message = f"{subject}, is not the one on which the switch listens: the container sees {there}"
    why = (
        "ovs-vswitchd has recreated the socket since the container's start, and the container's mount does not follow the host's"
    )
    return sight.found("socket-unseen", message, _PROPAGATION, why=why)


def judge_application(sight: AttachmentSight) -> Findings:
    """The application behind a vhost-user port: connected, ended, never started, or elsewhere."""
    record, switch, port = sight.record, known(sight.switch), sight.port
    step = record.port
    if step is None or not step.interface.role or switch is None or not switch.serves or port is None or record.state != "ready":
        return
    if sight.is_connected:
        shown = select_status(port).get("num_of_vrings", "")
        yield sight.well("application", f"the application (connected{f', {shown} rings' if shown else ''})")
        return
    processes, socket = known(sight.processes), known(sight.socket)
    if processes and processes.see_directory is False and processes.count:
        place = record.directory.path if record.directory else ""
        message = f"no process of the pod sees the directory of its socket, {place}: no container mounts the volume"
        remedy = f"mount the volume {_volume(record)} in the container, and recreate the pod"
        yield sight.found("directory-unseen", message, remedy, why="no application can reach its socket")
    yield from _by_arguments(sight, processes.arguments if processes else ())
    if socket and socket.others and not socket.party:
        others = ", ".join(map(quote, socket.others[:_SHOWN]))
        yield _other_path(sight, f"a process listens in its directory at another name: {others}")
    if socket and socket.party == "connected":
        message = "the application is connected, and has not set up its queues"
        remedy = "wait, if it has just begun (a VM boots, or is paused); else see the application's log"
        why = "no frame flows until it has"
        yield sight.found("application-not-ready", message, remedy, why, severity="warning")
    elif socket and socket.party == "listening" and step.interface.role == "client":
        message = "an application listens at its socket, and the switch is not connected to it"
        remedy = "the switch tries once a second, and a running agent recreates a port that has given up; see ovs-vswitchd.log"
        yield sight.found("switch-not-connected", message, remedy, why="no frame flows")
    else:
        yield _absent(sight)


def _by_arguments(sight: AttachmentSight, arguments: tuple[VhostArgument, ...]) -> Findings:
    """What the command lines of the pod's processes say, where they name a vhost-user interface."""
    record = sight.record
    socket, step = record.socket, record.port
    if socket is None or step is None or not arguments:
        return
    wanted = "server" if step.interface.role == "client" else "client"
    mine = [each for each in arguments if each.path.rpartition("/")[2] == socket.name]
    for each in mine:
        if each.role != wanted:
            does = f"{_DOES[each.role]} {quote(each.path)}, and in this network it has to be the {wanted}"
            message = f"the application (process {each.pid}) is the {each.role}: it {does}"
            option = "with" if wanted == "server" else "without"
            remedy = f"start it {option} 'server=1' in its --vdev; {_told_in(record)}"
            yield sight.found("application-wrong-role", message, remedy, why="two sides of the same role never meet")
    if not mine:
        each = arguments[0]
        yield _other_path(sight, f"process {each.pid} of the pod uses {quote(each.path)}")


def _other_path(sight: AttachmentSight, seen: str) -> Finding:
    record = sight.record
    name = record.socket.name if record.socket else ""
    inside = f"{record.note.mapped_dir}{name}" if record.note else name
    message = f"the application uses another socket than this interface's, which is {inside}: {seen}"
    remedy = f"give it that path; {_told_in(record)}"
    return sight.found("application-other-path", message, remedy, why="the switch waits at the other name")


def _told_in(record: Record) -> str:
    """Where the application's author finds its arguments."""
    place = f"the file configData-* in {record.directory.path}" if record.directory else "its configuration"
    return f"the right arguments are in {'the pod annotation userspace/dpdk-args' if record.note else place}"


def _absent(sight: AttachmentSight) -> Finding:
    """No application: one that has ended, or none was ever there."""
    step, socket = sight.record.port, sight.record.socket
    makes = step is not None and step.interface.role == "client"
    does = "makes" if makes else "connects to"
    why = "the switch drops what is sent to the pod" + (
        f" until an application {does} its socket {socket.path}" if socket else ""
    )
    if crashes := _crashes(sight):
        message = f"the application ends each time it is started: {crashes}"
        remedy = f"its log says why{_logs(sight, previous=True)}"
        return sight.found("application-crashes", message, remedy, why)
    if sight.was_connected:
        message = "the application has ended: one was connected, and none is now"
        return sight.found("application-ended", message, _restart(sight), why=why)
    message = "no application has ever connected since the switch opened the port"
    processes = known(sight.processes)
    told = _told_in(sight.record)
    if processes is None:
        runs, remedy = "", f"see whether it runs, and its log{_logs(sight)}; {told}"
    elif processes.count:
        runs = f", and {processes.count} process{'es run' if processes.count > 1 else ' runs'} in the pod"
        remedy = f"see whether one of them is the application, and its log{_logs(sight)}; {told}"
    else:
        runs, remedy = ", and no process runs in the pod", f"see why its container does not run{_describe(sight)}; {told}"
    return sight.found("application-never-started", f"{message}{runs}", remedy, why)


def judge_hugepages(sight: AttachmentSight) -> Findings:
    """Whether the pod has asked for hugepages, where no application is connected: without them DPDK ends at once."""
    pod = known(sight.pod)
    step = sight.record.port
    if pod and pod.lacks_hugepages and step and step.interface.role and not sight.is_connected:
        message = "no application is connected, and no container of the pod may use hugepages, which DPDK needs"
        remedy = (
            "give the container resources.limits with hugepages-2Mi (or hugepages-1Gi) and memory, and a volume of medium "
            "HugePages; or start the application with --no-huge"
        )
        why = "a DPDK application ends at its start with 'no free hugepages'"
        yield sight.found("hugepages-missing", message, remedy, why=why, severity="warning")


def _crashes(sight: AttachmentSight) -> str:
    """What the API tells of containers that were started again, and do not run; "" for none."""
    pod = known(sight.pod)
    ended = [each for each in (pod.containers if pod else ()) if each.state != "running" and each.restarts]
    return "; ".join(map(_ending, ended[:_SHOWN]))


def _ending(container: SeenContainer) -> str:
    code = container.exit_code
    signal = f" (signal {code - _BY_SIGNAL})" if code and _BY_SIGNAL < code < 2 * _BY_SIGNAL else ""
    restarts = f"{container.restarts} restart{'s' if container.restarts > 1 else ''}"
    facts = (container.reason, f"exit code {code}{signal}" if code is not None else "", restarts)
    return f"container {container.name}: {', '.join(filter(None, facts))}"


def _restart(sight: AttachmentSight) -> str:
    """What to do of an application that has ended."""
    why = f"its log says why the application ended{_logs(sight, previous=True)}"
    if not sight.record.pod_name:
        return f"{why}; then start it again"
    return f"{why}; `{_kubectl(sight.record)} delete pod {sight.record.pod_name}` has the pod's owner start it again"


def _logs(sight: AttachmentSight, *, previous: bool = False) -> str:
    record = sight.record
    if not record.pod_name:
        return ""
    pod = known(sight.pod)
    option = " --previous" if previous and pod and any(each.restarts for each in pod.containers) else ""
    return f": `{_kubectl(record)} logs {record.pod_name} --all-containers{option}`"


def _describe(sight: AttachmentSight) -> str:
    record = sight.record
    return f": `{_kubectl(record)} describe pod {record.pod_name}`" if record.pod_name else ""


def _kubectl(record: Record) -> str:
    return f"kubectl -n {record.pod_namespace or 'default'}"


def _volume(record: Record) -> str:
    return f"'{record.directory.path.rpartition('/')[2]}'" if record.directory else ""
