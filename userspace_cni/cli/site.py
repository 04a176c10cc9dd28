"""What a command works on: the settings in force and the node that they describe, opened when first needed.

The commands read the same store as plugin and agent, under its locks, and ask the switch themselves, so that they work while the
agent is dead or hangs.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from userspace_cni.attachment.listing import NOT_SERVING, CountedPort, SwitchPort, Unresolved, select
from userspace_cni.attachment.records import Record
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.host_paths import see_host_at
from userspace_cni.base.log import bind
from userspace_cni.base.settings import Settings, load
from userspace_cni.cli import node_load
from userspace_cni.cli.agent_client import AgentClient
from userspace_cni.cli.command_line import ProgramCommand
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE, USAGE
from userspace_cni.cli.view import note

if TYPE_CHECKING:
    from userspace_cni.attachment.node import Liveness, Node
    from userspace_cni.node.local_node import LocalNode
    from userspace_cni.node.probes import ProbePorts

ROOT_ONLY: Final = "only root may; run this as root"
"""The end of a message to a user who is not root, after what was to be done."""
_NET_ADMIN: Final = 12
"""Its number (linux/capability.h)."""
APART_S: Final = 5.0
"""Seconds between the two looks after which a whole attachment may be removed."""
SWITCH_S: Final = 3.0
"""Seconds for connecting to OVSDB, on a node that is not busy."""
ATTACHMENT_S: Final = 3.0
"""Seconds for looking at one attachment, on a node that is not busy."""
LIFE_S: Final = 2.0
"""Seconds for an answer of ovs-vswitchd, on a node that is not busy."""


def patient(seconds: float) -> Deadline:
    """The deadline for what takes so long at most on a node that is not busy."""
    return Deadline.after(node_load.look().patience(seconds))


def attachment_limit() -> Deadline:
    return patient(ATTACHMENT_S)


def look_at_silence() -> str:
    """What to look at where ovs-vswitchd lives and is silent."""
    load = node_load.look()
    return f"{load}; ask again" if load.is_busy else "see its log"


class CommandRefused(click.ClickException):
    """Why the command ends here, and with which exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = self.exit_code = code  # type: ignore[misc]  # click has one for each class


class NodeCommand(ProgramCommand):
    """A command that looks at the node: only warnings are logged."""

    def invoke(self, ctx: click.Context) -> Any:
        with bind("warning"):
            return super().invoke(ctx)


@dataclass
class Site:
    """The node and its settings. `given`: a node to use instead of the settings'; `apart_s`: seconds between two looks."""

    settings: Settings
    given: Node | None = None
    apart_s: float = APART_S
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    _probes: list[ProbePorts] = field(default_factory=list)

    @cached_property
    def node(self) -> Node:
        """The node. Raises Refused for a user who cannot read its records."""
        if self.given is not None:
            return self.given
        directory = self.drivers.store.journal.directory
        require_root(f"reading the records in {directory}", directory)
        return self.drivers

    @cached_property
    def drivers(self) -> LocalNode:
        """The node of the settings, for what is done to the node itself."""
        from userspace_cni.node.local_node import LocalNode

        return LocalNode(dataclasses.replace(self.settings, log_level="warning"), self.environ, resident=True)

    def require_root(self, what: str) -> None:
        """Refuse a user who cannot work in the directories of this node's plugin; `what` is the purpose, for the message.

        Call it first: the kernel's error for the first operation that fails does not tell a user to be root.
        """
        if self.given is None:
            settings = self.settings
            require_root(what, *map(self.map_path, (settings.state_dir, settings.run_dir, settings.short_dir)))

    @cached_property
    def client(self) -> AgentClient:
        return AgentClient(self.map_path(self.settings.agent_socket))

    def map_path(self, path: str) -> str:
        """A path of the settings as this process reaches it."""
        return self.drivers.installation.root.path(path) if self.given is None else path

    def resolve(self, path: str) -> str:
        """A path of the settings with its links followed as the host follows them."""
        return self.drivers.installation.root.resolve(path) if self.given is None else path

    def records(self, names: tuple[str, ...] = ()) -> list[Record]:
        """The records of these names, or all without names. Raises Refused for a name of no attachment, or of several pods'."""
        try:
            return select(self.node.store.journal.records(), names)
        except Unresolved as error:
            if error.ambiguous:
                raise CommandRefused(f"{error}", USAGE) from error
            meant = f"did you mean {' or '.join(error.candidates)}?" if error.candidates else "see userspace-cni list"
            raise CommandRefused(f"{error}; {meant}", FOUND) from error

    def switch_problem(self) -> UserspaceError | None:
        try:
            self.node.switch.ports.connect(patient(SWITCH_S))
        except UserspaceError as error:
            return error
        return None

    def switch_ports(self) -> list[SwitchPort] | None:
        """What the switch says of its ports; None when it cannot be asked, with a note of why."""
        problem = self.switch_problem()
        try:
            if problem is None:
                return list(self.node.switch.ports.list_ports())
        except UserspaceError as error:
            problem = error
        note(f"the switch cannot be asked: {problem}")
        return None

    def counters(self, vswitchd: str) -> Sequence[CountedPort] | None:
        """What the switch has counted at our ports; None while it cannot be asked."""
        return self.node.switch.list_counted() if vswitchd == "alive" else None

    def liveness(self) -> Liveness:
        """Whether ovs-vswitchd lives; it has two seconds to say so, longer on a busy node. `require_serving` goes by it then."""
        deadline = patient(LIFE_S)
        while (liveness := self.node.switch.ports.watch_liveness()).state == "silent" and deadline.remaining():
            pass
        return liveness

    def vswitchd(self) -> str:
        """The state of ovs-vswitchd (`Liveness.state`); a note on stderr when it does not serve."""
        liveness = self.liveness()
        if liveness.state in NOT_SERVING:
            note(
                f"ovs-vswitchd is {liveness.state}: {liveness.reason}; what it said of links and applications is left out; "
                + ("see its log, and restart it" if liveness.state == "dead" else look_at_silence())
            )
        return liveness.state

    def probe_ports(self, purpose: str, **limits: float) -> ProbePorts:
        """Probes of this process, on its session with OVSDB; `close` ends them at the latest."""
        from userspace_cni.node.probes import ProbePorts

        node = self.drivers
        self._probes.append(ProbePorts(node.installation, node, node.switch.ports, purpose, **limits))
        return self._probes[-1]

    def close(self) -> None:
        for each in self._probes:
            each.close()
        if "drivers" in vars(self):
            self.drivers.close()


def open_site(ctx: click.Context) -> Site:
    """The Site of this command: the caller's, else one of the settings in force. Raises BadRequest for bad settings."""
    site = ctx.find_object(Site)
    if site is None:
        site = Site(load(os.environ))
        see_host_at(site.settings.host_root)
        ctx.call_on_close(site.close)
    return site


def require_root(what: str, *directories: str) -> None:
    """Refuse, with exit code 3, a user who may not read and write in these directories, or where they would be made.

    `what`: the purpose, for the message. Without this check an unreadable store would look empty.
    """
    for directory in map(Path, directories):
        nearest = next(path for path in (directory, *directory.parents) if _exists(path))
        if not is_root() and not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
            raise CommandRefused(f"{what}: {ROOT_ONLY}", UNREACHABLE)


def require_net_admin(what: str) -> None:
    """Refuse, with exit code 3, a process without the capability NET_ADMIN, which `what` needs."""
    from userspace_cni.node.surroundings import holds

    if not holds(_NET_ADMIN):
        pod = "in a pod give the container the capability (securityContext.capabilities.add: [NET_ADMIN])"
        raise CommandRefused(f"{what} needs the capability NET_ADMIN: run this as root, or {pod}", UNREACHABLE)


def is_root() -> bool:
    """Whether the user is root. Root passes every check here: an operation that is refused to root reports it itself."""
    return os.geteuid() == 0


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
