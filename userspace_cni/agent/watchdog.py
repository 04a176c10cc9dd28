"""Keeps the session with OVSDB open, watches ovs-vswitchd, and reconciles records with the node.

One thread, which sleeps while it is told of nothing, the session with OVSDB is open and ovs-vswitchd lives: it looks at that
daemon every five seconds, and once a second while something of that is not so, or where devices are offered to the kubelet. A
pass of reconciliation is due at start, after a new session with OVSDB, after a restart of ovs-vswitchd, on the tick, and on
request. Dead sockets do not wait for a pass: an application whose connection ended, or an ovs-vswitchd that ended, may have
left some that its successor needs soon. Nor does what others change in OVSDB or in the kernel: the attachments that it may be
of are looked at by themselves, when `due_looks` says.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from userspace_cni.agent.due_looks import DueLooks
from userspace_cni.agent.switch_life import SwitchLife
from userspace_cni.attachment.node import Lifeline, Node, Ports
from userspace_cni.attachment.reconcile import Reconciliation
from userspace_cni.attachment.steps import PortRef, is_attached, is_host_end
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop

BEAT_S: Final = 1.0
FAST_BEAT_S: Final = 0.1
"""The beat in the first seconds after the end of an ovs-vswitchd: the next one makes its sockets after half a second."""
FAST_S: Final = 30.0
LOOKS_S: Final = (0.0, 0.1, 0.5, 2.0)
"""Pauses before the looks after the end of an application's connection. The kernel closes the descriptors of a killed process one
by one: its socket may seem alive at the first look."""
WATCH_S: Final = 5.0
"""Seconds between two looks at ovs-vswitchd while it lives: STATUS believes the last one when the daemon is silent."""
CONNECT_S: Final = 2.0
APART_S: Final = 5.0
"""Seconds between two looks that prove something gone, less when the tick is short. `gc` waits as long between its looks."""


_Thing = tuple[str, ...]
"""What has changed: "attachment" with container and interface, "bridge" or "port" with a name."""


class WatchedSwitch(Protocol):
    """The switch, as far as it is watched."""

    @property
    def ports(self) -> Ports: ...

    def watch_life(self, ended: Callable[[], None]) -> Lifeline:
        """A connection to ovs-vswitchd to be held: `ended` is called when the daemon ends, on a thread of its own."""
        ...

    def free_sources(self) -> int:
        """Remove the dead sockets of a killed ovs-vswitchd, on which the next one could not bind; how many. Never fails."""
        ...


class Watchdog(Loop):
    """The thread. Its rounds find nothing to do as a rule.

    It calls `count` with each action's name, and `reconnected` for each session with OVSDB after the first. `looked` is called in
    each round, and once a second, after session and switch were looked at; it must not wait.
    """

    failing = "a round of the watchdog failed: "
    late = "reconciliation has not ended"
    back_off = BackOff(BEAT_S, BEAT_S)

    def __init__(
        self,
        node: Node,
        switch: WatchedSwitch,
        count: Callable[[str], None],
        reconnected: Callable[[], None],
        tick_s: float,
        looked: Callable[[], None] | None = None,
    ) -> None:
        super().__init__("watchdog", "watches the switch and reconciles records")
        self._watched_switch = switch
        self._count = count
        self._reconnected = reconnected
        self._tick_s = tick_s
        self._looked = looked
        self._reconciliation = Reconciliation(node, self._report, min(APART_S, tick_s / 2))
        self.switch = SwitchLife(switch.ports)
        self._life = switch.watch_life(self._ended)
        self._died = self._death_seen = 0.0
        self._disconnected: dict[str, tuple[float, ...]] = {}
        self._touched: DueLooks[_Thing] = DueLooks(tick_s)
        self._changed: set[tuple[str, str]] = set()
        self._followed_again: set[tuple[str, str]] = set()
        self._actions: Counter[str] = Counter()
        self._pass_asked = False
        self._last: Mapping[str, int] = {}
        self._sessions = 0
        self._daemon = ""
        self._lives = False
        self._reachable = True
        self._watched = self._next_pass = 0.0

    def stop(self, within_s: float = 0.0) -> None:
        """Begin no further round."""
        super().stop(within_s)
        self._life.let_go()

    @property
    def dead_sockets(self) -> Collection[PortRef]:
        """The ports whose sockets were dead when the last pass ended, and those whose application has ended since."""
        return self._reconciliation.dead_sockets

    def on_disconnect(self, port: str) -> None:
        """Note that the connection of this port's application has ended. Never waits."""
        now = time.monotonic()
        with self._wake:
            self._disconnected[port] = tuple(now + pause for pause in LOOKS_S)
        super().ask()

    def on_pod(self, namespace: str, name: str) -> None:
        """Note that this pod has changed. Never waits."""
        with self._wake:
            self._changed.add((namespace, name))
        super().ask()

    def on_change(self, bridge: str, marks: Mapping[str, str]) -> None:
        """Note that the bridge of that name came, went or is another, or that rows with these marks have changed. Never waits."""
        things: list[_Thing] = [("bridge", bridge)] if bridge else []
        if is_attached(marks) and "container-id" in marks:  # a bridge's has none
            things.append(("attachment", marks.get("container-id", ""), marks.get("ifname", "")))
        self._touch(*things)

    def on_link(self, name: str) -> None:
        """Note that the link of that name, or what guards it, has gone or is down; "" for any. Never waits."""
        if not name or is_host_end(name):
            self._touch(("port", name))

    def _touch(self, *things: _Thing) -> None:
        with self._wake:
            if self._touched.note(*things):
                super().ask()

    def _ended(self) -> None:
        """Free sockets after ovs-vswitchd has ended, on the lifeline's thread: the next one may bind before a pass ends. Tell the
        log, too."""
        self._guarded(self._watched_switch.free_sources)
        with self._wake:
            self._died, self._lives = time.monotonic(), False
        super().ask()
        self._guarded(self.switch.look, "looking at ovs-vswitchd")

    def wake(self) -> None:
        """Have a look at session and switch soon: the session is lost. Never waits."""
        super().ask()

    def ask(self) -> None:
        """Have a pass soon. Never waits and never fails."""
        with self._wake:
            self._pass_asked = True
            super().ask()

    def reconcile(self, deadline: Deadline) -> Mapping[str, int]:
        """Request a pass and wait for it: how often each action was taken. Raises Unavailable at the deadline."""
        if not self.await_round(deadline.require("reconciliation")):
            raise Unavailable("reconciliation takes longer than this call may", "see the agent's log")
        if self.failure:
            raise Unavailable(f"reconciliation failed: {self.failure}", "see the agent's log")
        return self._last

    def _report(self, action: str) -> None:
        self._actions[action] += 1
        self._count(action)

    def _patience(self) -> float:
        """Seconds until the next look is due."""
        now = time.monotonic()
        beat = FAST_BEAT_S if not self._lives and now - self._death_seen < FAST_S else BEAT_S
        if self._lives and self._reachable and self._looked is None and not self._followed_again:
            beat = max(0.0, self._watched - now)
        with self._wake:
            touched = self._touched.seconds()
            disconnected = [looks[0] - now for looks in self._disconnected.values()]
        return max(0.0, min([beat, self._next_pass - now, *disconnected, *([] if touched is None else [touched])]))

    def _look_at_touched(self) -> None:
        with self._wake:
            things = self._touched.take()
        if not things:
            return
        began = time.monotonic()
        self._guarded(lambda: self._mend(things), "checking what has changed")
        with self._wake:
            self._touched.took(time.monotonic() - began)

    def _mend(self, things: Collection[_Thing]) -> None:
        """Make again what is lost of the attachments that these things are of, and look once more at those that are busy."""
        of_kind = {kind: [each[1:] for each in things if each[0] == kind] for kind in ("attachment", "bridge", "port")}
        bridges, ports = ([name for (name,) in of_kind[kind]] for kind in ("bridge", "port"))
        attachments = [(container, ifname) for container, ifname in of_kind["attachment"]]
        if "" in ports:
            self.ask()
        busy = self._reconciliation.look_at_changed(attachments, ports, bridges)
        self._touch(*(("attachment", container, ifname) for container, ifname in busy))

    def _look_at_disconnected(self) -> None:
        now = time.monotonic()
        with self._wake:
            ports = [port for port, looks in self._disconnected.items() if looks[0] <= now]
            later = {port: tuple(at for at in looks if at > now) for port, looks in self._disconnected.items()}
            self._disconnected = {port: looks for port, looks in later.items() if looks}
        for port in sorted(ports):
            self._guarded(lambda: self._reconciliation.look_at(port))  # noqa: B023 - called at once

    def _follow_changed(self) -> None:
        with self._wake:
            pods, self._changed = self._changed | self._followed_again, set()
        self._followed_again = set()
        if pods:
            self._guarded(lambda: self._followed_again.update(self._reconciliation.follow(pods)), "following pods")

    def _round(self) -> float:
        """Look at session and switch, and make a pass when one is due."""
        now = time.monotonic()
        if self._died > self._death_seen:
            self._death_seen, self._watched = self._died, 0.0
        self._look_at_disconnected()
        self._look_at_touched()
        self._follow_changed()
        whole = self._connect()
        if now >= self._watched:
            whole = self._is_restarted() or whole
            self._watched = now + (WATCH_S if self._lives else 0.0)
        if self._looked is not None:
            self._guarded(self._looked, "reporting session and switch")
        with self._wake:
            whole, self._pass_asked = whole or self._pass_asked, False
        if whole or now >= self._next_pass:
            self._pass(whole=whole)
            self._next_pass = time.monotonic() + self._tick_s
        return self._patience()

    def _pass(self, *, whole: bool) -> None:
        """A pass of reconciliation. That of the tick looks only at what may have changed since the last one."""
        self._actions.clear()
        self._guarded(self._watched_switch.free_sources)
        self._guarded(lambda: self._reconciliation.run(whole=whole))
        self._last = dict(self._actions)

    def _guarded(self, work: Callable[[], object], what: str = "reconciliation") -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 -- a bug in one pass must not end all of them
            say("error", f"{what} failed", error=repr(error))

    def _connect(self) -> bool:
        """Open the session with OVSDB if needed; whether it is a new one."""
        try:
            self._watched_switch.ports.connect(Deadline.after(CONNECT_S))
            sessions = self._watched_switch.ports.sessions
        except UserspaceError as error:
            self._reachable = self._reachable and not say("warning", "there is no session with OVSDB", error=error)
            return False
        new = sessions > self._sessions
        if new and self._sessions:
            self._reconnected()
        if new:
            say("info", "the session with OVSDB is open", sessions=sessions)
        self._sessions, self._reachable = sessions, True
        return new

    def _is_restarted(self) -> bool:
        """Whether ovs-vswitchd is another process than before."""
        self._life.hold()
        daemon = self.switch.look()
        self._lives = bool(daemon)
        restarted = bool(daemon and self._daemon and daemon != self._daemon)
        self._daemon = daemon or self._daemon
        return restarted
