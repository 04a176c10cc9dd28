"""The node's own network in the agent: its sources, the thread that reconciles it, and the receivers of its results.

Objects of the API are followed where a setting says so and there is an account. Nothing here waits for the API server: what is
known stays desired while that is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.records import node_container
from userspace_cni.attachment.specs import Specs, SpecStatus
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.supervisor import Supervisor
from userspace_cni.host.netlink.listening import KernelWatch
from userspace_cni.host.node_net.address_watch import AddressWatch
from userspace_cni.host.node_net.table_watch import TableWatch
from userspace_cni.network.concerns import Concerns, sentence
from userspace_cni.network.network_keeper import Keeper
from userspace_cni.network.shared_gateways import SharedGateway, gateway_of
from userspace_cni.network.spec_list import MIRROR, SHARED_GATEWAY
from userspace_cni.network.spec_sources import SpecSources
from userspace_cni.network.uplink_news import UplinkNews

if TYPE_CHECKING:
    from userspace_cni.attachment.steps import GatewayFlows
    from userspace_cni.network.gateway_helper import GatewayService
    from userspace_cni.network.spec_list import Desired
    from userspace_cni.node.local_node import LocalNode
    from userspace_cni.node.objects import NodeObjects, OwnNode
    from userspace_cni.node.reporting import Report
    from userspace_cni.node.state import RouteUse

_CHASSIS_S: Final = 5.0


class NodeNetwork(Supervisor):
    """What the agent does for the node's own network. `failed` is called with the kind of each spec that has got a new problem,
    `ended` with the name of each link that has gone or is down, or is not guarded any more, "" when that may be any.

    After `start` its methods may be called from any thread.
    """

    def __init__(
        self,
        node: LocalNode,
        environ: Mapping[str, str],
        failed: Callable[[str], None],
        ended: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._node = node
        self._failed = failed
        self._serving = False
        self._sources = SpecSources(node, environ, self._others(), self._addresses, lambda: self._serving)
        self._keeper = Keeper(
            Specs(node, self._sources.plan_as_recorded, self._sources.find_networks_to_release),
            self._sources.specs,
            node.installation.settings.tick_s,
            due=self._sources.is_due,
            told=self._told,
        )
        self._objects: NodeObjects | None = None
        self._report: Report | None = None
        self._news = UplinkNews(node.store.journal, node.pods.tell)
        self._problems: Mapping[tuple[str, str], str] = {}
        self._kinds: frozenset[tuple[str, ...]] = frozenset()
        place = node.installation.settings.switch_netns, node.installation.root
        self._watches: tuple[KernelWatch, ...] = (
            AddressWatch(self._watched, self.ask, *place, ended),
            TableWatch(node.store.journal.identity, self.ask, ended, *place),
        )
        self._gateway: GatewayService | None = None
        self.concerns = Concerns(node.installation, node.switch, lambda: self._sources.gateways)

    def start(self) -> None:
        """Go on from the records, and keep what is desired from now on. Raises UserspaceError."""
        self._node.switch.vswitchd()  # makes the node's `ports`, before two threads could each make them
        self.begin(self.concerns, *self._watches, self._keeper)
        settings = self._node.installation.settings
        if asked := gateway_of(settings):
            self._share(asked)
        if settings.gateway_bridge and not settings.kubeovn_annotations:
            say("warning", "gateway_bridge has no effect: it is for annotations, which kubeovn_annotations = true has read")
        if not self._node.installation.has_account:
            if settings.network_objects or self._reads_annotations:
                say("warning", "objects of the API cannot be followed", problem="no credentials; see the setting kubeconfig")
            return
        if settings.network_objects or self._reads_annotations:
            self._follow()
        if self._has_state or self._reads_annotations:
            self._tell()
        if not self._has_state:
            self._withdraw()

    def serve(self) -> None:
        """Calls of runtimes are taken from now on: they may get their network. Never waits."""
        self._serving = True
        self.ask()

    def _share(self, asked: SharedGateway) -> None:
        """Keep the flows of the bridge that OVN's gateway router shares with the node. Raises UserspaceError."""
        from userspace_cni.network.gateway_helper import GatewayService

        installation, journal = self._node.installation, self._node.store.journal

        def recorded() -> GatewayFlows | None:
            record = journal.read(node_container(SHARED_GATEWAY), asked.bridge)
            return record.gateway_flows if record else None

        session = installation.clients.of("").session if installation.has_account else None
        self._gateway = GatewayService(self._node, recorded, session)
        self.begin(self._gateway)

    def _follow(self) -> None:
        """Follow the objects that specs come from. Raises UserspaceError."""
        from userspace_cni.network.node_annotations import SCOPE
        from userspace_cni.node.objects import SPECS, NodeObjects

        if self._reads_annotations:
            say(
                "info",
                "kube-ovn's annotations of this node make a gateway",
                bridge=self._node.installation.settings.gateway_bridge,
                scope=SCOPE,
            )
        session = self._node.installation.clients.of("").session
        specs = SPECS if self._node.installation.settings.network_objects else ()
        self._objects = NodeObjects(session, self._node.installation.name, self.ask, specs=specs)
        self.begin(self._objects)

    def _tell(self) -> None:
        """Report to the API from now on. Raises UserspaceError."""
        from userspace_cni.kube.object_requests import Objects
        from userspace_cni.node.reporting import Report, ReportParts
        from userspace_cni.switch.chassis import read_chassis

        session, settings = self._node.installation.clients.of("").session, self._node.installation.settings
        self._report = Report(
            Objects(session),
            self._node.installation.name,
            lambda: read_chassis(self._node.switch.ports.client, Deadline.after(_CHASSIS_S)),
            parts=ReportParts(state=self._has_state, kubeovn=settings.kubeovn_annotations, routes=settings.routes),
            tell=self._node.pods.tell,
        )
        self.begin(self._report)
        if settings.network_objects and self._objects:
            self.begin(self._node.subnets.follow(session, self._objects))
        self.ask()  # a round tells what there is; before that nothing is reported

    def _withdraw(self) -> None:
        """Take back what an agent with other settings has reported. Raises UserspaceError."""
        from userspace_cni.node.reporting import Withdrawal

        self.begin(Withdrawal(self._node.installation.clients, self._node.installation.name))

    def ask(self) -> None:
        """Something that the specs depend on has changed. Never waits."""
        self._keeper.ask()

    def read_again(self) -> None:
        """Read the specs of the settings again, and reconcile all. Never waits."""
        self._sources.settings.read_again()
        self._keeper.urge()

    def reconcile(self, deadline: Deadline) -> Sequence[SpecStatus]:
        """Read the specs of the settings again, reconcile all, and wait for it. Raises Unavailable at the deadline."""
        self._sources.settings.read_again()
        return self._keeper.reconcile(deadline)

    def note_routes(self, routes: Sequence[RouteUse]) -> None:
        """Report what this node has of Routes, too. Never waits."""
        if self._report:
            self._report.note_routes(routes)

    @property
    def statuses(self) -> Sequence[SpecStatus]:
        return self._keeper.statuses

    def describe(self) -> dict[str, Any]:
        return {
            "specs": [describe_spec(each) for each in self.statuses],
            "concerns": [sentence(each) for each in self.concerns.found],
            "passages": [asdict(each) for each in self.concerns.passages],
            "mirrors": mirror_problems(self.statuses),
            "objects": " | ".join(filter(None, self._source_problems())),
        }

    def _source_problems(self) -> Iterator[str]:
        """Why something that is followed beside the settings cannot be, or the flows that follow from it cannot be kept."""
        if self._objects:
            yield from (self._objects.problem, self._node.subnets.problem)
        if self._gateway:
            yield self._gateway.problem

    def _watched(self) -> frozenset[str]:
        """The links at which others may change parts of the node's specs."""
        return frozenset(name for each in self.statuses for step in each.steps for name in step.links)

    @property
    def _has_state(self) -> bool:
        """Whether this node has a NodeState: what reads it comes with these settings."""
        return self._node.installation.settings.network_objects or self._node.installation.settings.routes

    @property
    def _reads_annotations(self) -> bool:
        settings = self._node.installation.settings
        return bool(settings.kubeovn_annotations and settings.gateway_bridge)

    def _others(self) -> list[Callable[[], Desired]]:
        objects = [self._of_objects] if self._node.installation.settings.network_objects else []
        return [*objects, self._of_annotations]

    def _of_objects(self) -> Desired:
        from userspace_cni.network.object_specs import read_desired
        from userspace_cni.node.objects import KnownObjects

        return read_desired(self._objects.read_known() if self._objects else KnownObjects(self._node.installation.name))

    def _of_annotations(self) -> Desired:
        from userspace_cni.network.node_annotations import read_desired

        own = self._own()
        return read_desired(own.annotations if own else None, self._node.installation.settings)

    def _addresses(self) -> frozenset[str] | None:
        """By which the cluster knows the node: none where it is in none, None while they are not known yet."""
        own = self._own()
        if own:
            return frozenset(own.addresses)
        return None if self._node.installation.settings.network_objects and self._node.installation.has_account else frozenset()

    def _own(self) -> OwnNode | None:
        return self._objects.read_known().own if self._objects else None

    def _told(self, statuses: Sequence[SpecStatus]) -> None:
        kinds = frozenset((each.kind, each.name, *(step.kind for step in each.steps)) for each in statuses)
        if kinds != self._kinds:
            # what others changed meanwhile was told of links that were not watched yet; and more may be to be given back
            self.ask()
            if self._gateway:
                self._gateway.ask()
        self._kinds = kinds
        problems = {(each.kind, each.name): each.problem for each in statuses if not each.holds}
        for key, problem in problems.items():
            if self._problems.get(key) != problem:
                self._failed(key[0])
        self._problems = problems
        self._tell_pods(statuses)
        if self._report:
            self._report.note_specs(statuses)
            self._report.note_subnets(self._node.subnets.uses())

    def _tell_pods(self, statuses: Sequence[SpecStatus]) -> None:
        """Tell pods of their uplinks, as far as switch and records can be looked at now."""
        ports = self._node.switch.list_ports()
        if ports is None:
            return
        try:
            self._news.tell(statuses, ports)
        except UserspaceError as error:
            say("warning", "pods cannot be told of their uplinks now", error=error)


def mirror_problems(statuses: Iterable[SpecStatus]) -> dict[str, str]:
    """Why a mirror of the settings is not as desired, by mirror."""
    return {each.name: each.problem for each in statuses if each.kind == MIRROR and not each.holds}


def describe_spec(status: SpecStatus) -> dict[str, Any]:
    """What became of a spec, as JSON values. `steps`: what the node has of it."""
    return {
        "kind": status.kind,
        "name": status.name,
        "source": status.source,
        "said_by": status.said_by,
        "desired": status.desired,
        "ready": status.holds,
        "problem": status.problem,
        "steps": [step.summary for step in status.steps],
    }
