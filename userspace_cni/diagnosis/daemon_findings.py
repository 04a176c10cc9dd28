"""Whether ovs-vswitchd lives, as which user, within which limits, and sees what it has to. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from userspace_cni.base.findings import Finding
from userspace_cni.node.node_facts import DaemonProcess, NodeFacts

WHERE: Final = "ovs-vswitchd"
_LOG: Final = "/var/log/openvswitch/ovs-vswitchd.log"
_FEW_FILES: Final = 0.8
"""Of the limit of open files, from which on it is told. A vhost-user port takes some ten."""
_FILES: Final = 65536
_YOUNG_S: Final = 300
_RESTART: Final = "when traffic may stop: service openvswitch-switch restart"


def judge_daemon(facts: NodeFacts, short_dir: str) -> Iterator[Finding]:
    """What is wrong with the switch's processes. `short_dir`: where it has to see the mounts of pods' directories."""
    state, reason = facts.life
    if facts.away:
        said = describe_database(facts.database_pid, facts.away, stopped=facts.database_stopped)
        message = f"the database does not answer: {said}"
        remedy = "service openvswitch-switch start"
        if facts.database_pid:
            remedy = f"kill -CONT {facts.database_pid}" if facts.database_stopped else _RESTART
        yield Finding("switch-away", "error", "switch", message, remedy, "", "no pod gets a port, and none is removed")
    if state == "dead":
        yield Finding("vswitchd-dead", "error", WHERE, reason, f"see {_LOG}; then service openvswitch-switch restart")
    elif state == "silent":
        why = "it moves frames still, perhaps, and makes no port"
        yield Finding("vswitchd-silent", "error", WHERE, reason, f"see {_LOG}; ask again on a busy node", why=why)
    for lack in facts.lacking:
        remedy = "run the agent as deploy/cluster/base has it: hostPID, hostNetwork, its mounts and capabilities"
        why = "an agent in this container lacks it, too"
        yield Finding("agent-lacks", "error", "container", lack, remedy, lack.partition(":")[0], why)
    if facts.daemon:
        yield from _judge_process(facts.daemon)
        yield from _judge_view(facts.daemon, short_dir)


def describe_database(pid: int, away: str, *, stopped: bool) -> str:
    """Why OVSDB does not answer, `away`, with what is seen of its server, the process `pid`, 0 where none is seen."""
    if stopped:
        return f"ovsdb-server, process {pid}, is stopped by a signal (state T), as by SIGSTOP or a debugger"
    return f"ovsdb-server, process {pid}, runs and does not answer ({away})" if pid else away


def describe_age(seconds: float) -> str:
    """`3 days`, `2 hours`, `40 s`."""
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= unit:
            number = int(seconds // unit)
            return f"{number} {name}{'' if number == 1 else 's'}"
    return f"{int(seconds)} s"


def _judge_process(daemon: DaemonProcess) -> Iterator[Finding]:
    pid = daemon.pid
    if daemon.age_s is not None and daemon.age_s < _YOUNG_S:
        message = f"it was started {describe_age(daemon.age_s)} ago"
        yield Finding("vswitchd-young", "note", WHERE, message, f"if it was not meant, see {_LOG}", "start")
    if daemon.crashes:
        message = f"its monitor has restarted it {daemon.crashes} times, because it crashed"
        remedy = f"see {_LOG} and coredumpctl list; the count ends with the monitor, {_RESTART}"
        yield Finding(
            "vswitchd-crashed", "warning", WHERE, message, remedy, "monitor", "each crash stops all traffic for seconds"
        )
    if daemon.replaced:
        message = "its program was replaced since it was started: the one that runs is not the one that is installed"
        yield Finding(
            "vswitchd-replaced",
            "warning",
            WHERE,
            message,
            _RESTART,
            "program",
            "the next restart, whenever it comes, is an upgrade",
        )
    if daemon.swapped:
        message = f"{daemon.swapped >> 10} KiB of it are swapped out"
        remedy = "swapoff -a, and start it with --mlockall (OVS_CTL_OPTS in /etc/default/openvswitch-switch)"
        yield Finding("vswitchd-swapped", "warning", WHERE, message, remedy, "swap", "a polling thread waits for the disk")
    if daemon.files is not None and daemon.files_max is not None and 0 <= daemon.files_max * _FEW_FILES < daemon.files:
        message = f"it has {daemon.files} files open, and may have {daemon.files_max} (RLIMIT_NOFILE)"
        limit = daemon.files_hard if daemon.files_hard and daemon.files_hard > 2 * daemon.files else _FILES
        remedy = f"prlimit --pid {pid} --nofile={limit}:{limit}; for good: LimitNOFILE={_FILES} in its unit"
        yield Finding("open-files", "warning", WHERE, message, remedy, "RLIMIT_NOFILE", "it opens no port beyond that")
    user = daemon.user
    if user and not user.locks_freely and daemon.locked_max is not None and daemon.locked_max >= 0:
        message = f"user {user.uid} may lock {daemon.locked_max >> 10} KiB of memory (RLIMIT_MEMLOCK)"
        remedy = f"prlimit --pid {pid} --memlock=unlimited:unlimited; for good: LimitMEMLOCK=infinity in its unit"
        yield Finding(
            "locked-memory", "warning", WHERE, message, remedy, "RLIMIT_MEMLOCK", "DPDK cannot give its memory to a NIC by vfio"
        )
    if user and not user.overrides_modes:
        message = f"it runs as user {user.uid} without CAP_DAC_OVERRIDE: it may open only sockets that their modes allow it"
        remedy = "run it as root (OVS_USER_ID in /etc/default/openvswitch-switch), or let applications open their sockets to it"
        yield Finding(
            "ovs-user", "warning", WHERE, message, remedy, "user", "ports of pods whose sockets belong to others stay down"
        )
    if daemon.label.endswith("(enforce)"):
        message = f"AppArmor confines it by the profile {daemon.label}"
        remedy = "see audit in the kernel's log if a socket stays closed; aa-complain lets it, and tells"
        yield Finding("apparmor", "note", WHERE, message, remedy, "AppArmor")


def _judge_view(daemon: DaemonProcess, short_dir: str) -> Iterator[Finding]:
    """Only a switch in a mount namespace of its own, as in a pod, can lack this."""
    remedy = f"mount {short_dir} into its container at the same path, with mountPropagation: HostToContainer"
    why = "it does not find the sockets of pods: their ports stay down, and it tries for ever"
    if daemon.sees is False:
        message = f"it does not see short_dir, {short_dir}, of the host"
        yield Finding("short-dir-unseen", "error", WHERE, message, remedy, "short_dir", why)
    elif daemon.receives is False:
        message = f"mounts that are made below short_dir, {short_dir}, do not reach its mount namespace"
        yield Finding("mounts-unseen", "error", WHERE, message, remedy, "short_dir", why)
