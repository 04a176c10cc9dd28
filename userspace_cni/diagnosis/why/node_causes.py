"""What of the node itself can be the cause: the agent, the store of records, the switch's two daemons. Pure."""

from __future__ import annotations

from typing import Final

from userspace_cni.diagnosis.daemon_findings import describe_database
from userspace_cni.diagnosis.why.attachment_sight import Findings, Sight, known

START_AGENT: Final = "start it again: `userspace-cni agent`, or the service or DaemonSet that runs it; its log says why it ended"
_RESTART: Final = "restart it: `systemctl restart openvswitch-switch` (on RHEL the service is openvswitch)"


def judge_agent(sight: Sight) -> Findings:
    """The agent: what is attached goes on without it; nothing is attached, and nothing that is lost comes back."""
    agent = known(sight.agent)
    if agent is None:
        return
    needed = f"the installed plugin {agent.plugin} hands each call to it, so that no pod is attached" if agent.plugin else ""
    idle = "what is attached goes on, but nothing that is lost or changed is made again"
    why = "; ".join(filter(None, (needed, idle)))
    match agent.state:
        case "dead":
            yield sight.found("agent-dead", f"the agent has died: no process listens at {agent.socket}", START_AGENT, why=why)
        case "absent" if agent.plugin:
            message = f"no agent runs: there is no socket {agent.socket}"
            yield sight.found("agent-absent", message, START_AGENT, why=why)
        case "absent":
            message = f"no agent runs ({agent.socket}), and none is needed by an installed plugin"
            yield sight.found("agent-absent", message, why=idle, severity="note")
        case "slow" if agent.stopped:
            message = f"the agent, process {agent.stopped}, is stopped by a signal (state T), as by SIGSTOP or a debugger"
            yield sight.found("agent-stopped", message, f"let it go on: `kill -CONT {agent.stopped}`", why=why)
        case "slow":
            remedy = "look at its log; where it stays so, end it with SIGKILL and start it again: attachments stay"
            yield sight.found("agent-slow", "; ".join(agent.problems), remedy, why=why)
        case "troubled":
            said = "; ".join(agent.problems)
            yield sight.found("agent-not-ready", f"the agent cannot attach pods now: {said}", "`userspace-cni status`")
        case "ready":
            yield sight.well("agent", "the agent")


def judge_store(sight: Sight) -> Findings:
    """The store: whether it can be written, and what in it waits."""
    store = known(sight.store)
    if store is None:
        return
    for (setting, path), problem in store.unwritable.items():
        message = f"directory {path} (setting {setting}): {problem}"
        full = "full" in problem
        remedy = (
            f"`df -h {path}` and `df -i {path}`: make room" if full else f"`findmnt -T {path}`: it has to be writable for root"
        )
        why = "no pod can be attached, and no change of an attachment be recorded"
        yield sight.found("store-full" if full else "store-unwritable", message, remedy, why=why)
    if store.spooled:
        message = f"{len(store.spooled)} DEL that no agent received wait{'s' if len(store.spooled) == 1 else ''} in the spool"
        remedy = "the next agent carries them out at its start; without one `userspace-cni gc` does"
        yield sight.found(
            "spool-waiting", message, remedy, why="their ports and addresses are held until then", severity="warning"
        )
    if not (store.unwritable or store.quarantined):
        yield sight.well("store", "the store of records")


def judge_switch(sight: Sight) -> Findings:
    """The two daemons of the switch."""
    switch = known(sight.switch)
    if switch is None:
        return
    if switch.daemon == "dead":
        message = f"ovs-vswitchd is dead: {switch.reason}"
        why = "no port of this node carries a frame; applications are connected again when it is back"
        yield sight.found("vswitchd-dead", message, f"{_RESTART}; the end of ovs-vswitchd.log says what happened", why=why)
    elif switch.daemon == "silent":
        why = "no port is opened or changed, and what it forwards may have stopped"
        if switch.stopped:
            message = f"ovs-vswitchd, process {switch.pid}, is stopped by a signal (state T), as by SIGSTOP or a debugger"
            yield sight.found("vswitchd-stopped", message, f"let it go on: `kill -CONT {switch.pid}`", why=why)
        else:
            process = f", process {switch.pid}," if switch.pid else ""
            message = f"ovs-vswitchd{process} runs and does not answer: {switch.reason}"
            remedy = f"see the end of its log, ovs-vswitchd.log, for what it waits; if that does not pass, {_RESTART}"
            yield sight.found("vswitchd-silent", message, remedy, why=why)
    if switch.away:
        pid = switch.database_pid
        message = f"OVSDB cannot be asked: {describe_database(pid, switch.away, stopped=switch.database_stopped)}"
        why = "ports that are open go on, but none is made, changed or deleted; what the switch has now is not known here"
        remedy = f"see whether ovsdb-server runs, and its log, ovsdb-server.log; {_RESTART}"
        if pid:
            lives = f"its log, ovsdb-server.log, may say for what it waits; if that does not pass, {_RESTART}"
            remedy = f"let it go on: `kill -CONT {pid}`" if switch.database_stopped else lives
        yield sight.found("ovsdb-away", message, remedy, why=why)
    elif switch.daemon == "alive" and switch.unserving:
        yield sight.found("switch-unfit", switch.unserving, "`userspace-cni status`", why="no port can be added")
    elif switch.daemon == "alive":
        yield sight.well("switch", f"the switch ({switch.reason})")
