"""The leader's work on Services: what they and their endpoints have become, as load balancers of OVN.

A round judges the Services that have changed, or whose EndpointSlices have, and writes what of their rows differs. An external
address is told by its row: so a new leader leaves it with the Service that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from userspace_cni.base.findings import Finding
from userspace_cni.base.log import say
from userspace_cni.base.notices import SERVICE_DEGRADED, Recipient
from userspace_cni.controller.northbound_hold import NorthboundHold
from userspace_cni.controller.port_news import PortNews, ToldPorts
from userspace_cni.controller.scope_rounds import MarkedRounds, ScopeTimes
from userspace_cni.kube.object_watch import ObjectWatch
from userspace_cni.kube.resources import SERVICES
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.services.balancer_rows import Balancer, ServiceFacts
from userspace_cni.ovn.services.balancer_writing import (
    SERVICE_SCOPE,
    BalancerBatch,
    HeldBalancers,
    WriteBalancers,
    list_claims,
    mark_of,
    service_of_mark,
)
from userspace_cni.ovn.services.service_book import ServiceBook
from userspace_cni.ovn.services.service_facts import ServiceFactsView, with_nodes
from userspace_cni.ovn.topology import CLUSTER_GROUP, GATEWAY_GROUP

_NONE: Final[Mapping[str, Any]] = {}
_REMEDY: Final = "userspace-cni ovn init-cluster makes it, and init-node gives it to the node's switch"
T = TypeVar("T")


@dataclass(frozen=True)
class ServiceSources:
    """What load balancers follow from, beside the database."""

    services: ObjectWatch
    slices: ObjectWatch
    nodes: ObjectWatch

    @property
    def listed(self) -> bool:
        """Whether there was a first list of each."""
        return self.services.synced and self.slices.synced and self.nodes.synced

    @property
    def certain(self) -> bool:
        """Whether a Service or endpoint that is not known is none."""
        return self.services.confirmed and self.slices.confirmed


class ServiceRounds(MarkedRounds):
    """The thread; `ask` it for a round."""

    failing = "load balancers of Services cannot be kept now; the controller tries again: "

    def __init__(self, hold: NorthboundHold, sources: ServiceSources, times: ScopeTimes | None = None) -> None:
        super().__init__(hold, SERVICE_SCOPE, "keeps load balancers of Services", times)
        self._sources = sources
        self._facts = ServiceFactsView(self.ask)
        hold.follow(self._facts.told, self.ask)
        self.on_news: Callable[[Recipient, Sequence[Finding]], None] = lambda _recipient, _findings: None
        """Told what Services' authors are to know; it must not wait."""
        # only the thread uses these
        self._book = ServiceBook()
        self._services = self._slices = _NONE
        self._joined: tuple[ServiceFacts, Mapping[str, Any], ServiceFacts] | None = None
        self._balancers: dict[str, tuple[Balancer, ...]] = {}
        self._lacking = ToldPorts(PortNews(SERVICE_DEGRADED, "not all of Services can be served: ", self._tell_service))

    @property
    def lacking(self) -> int:
        """How many Services are not served as they say."""
        return len(self._lacking.reasons)

    @property
    def balancers(self) -> int:
        """How many load balancers there are to be."""
        return sum(map(len, tuple(self._balancers.values())))

    def _listed(self) -> bool:
        return self._sources.listed

    def _are_certain(self) -> bool:
        return self._sources.certain

    def _take(self, session: NorthboundSession, *, everything: bool) -> Collection[str]:
        facts = self._facts.take(session)
        if everything:
            self._book = ServiceBook(list_claims({scope: self._view.of_scope(scope) for scope in self._view.scopes}))
            self._services = self._slices = _NONE
            self._balancers = {}
            if self._certain:
                self._book.ask(map(service_of_mark, self._view.scopes))  # what they had of addresses is free
        services, slices = self._sources.services.objects() or _NONE, self._sources.slices.objects() or _NONE
        self._book.take_facts(self._join(facts))
        self._book.take_services(_find_changes(self._services, services))
        self._book.take_slices(_find_changes(self._slices, slices))
        self._services, self._slices = services, slices
        settled = self._book.settle()
        for key, balancers in settled.items():
            if balancers:
                self._balancers[key] = balancers
            else:
                self._balancers.pop(key, None)
        misplaced: set[str] = set()
        if self._facts.is_left:
            self._facts.is_left = False
            misplaced = HeldBalancers(session).list_misplaced(each for found in self._balancers.values() for each in found)
        return {mark_of(each) for each in (*settled, *misplaced)}

    def _command(self, session: NorthboundSession, scopes: Sequence[str], *, may_remove: bool) -> WriteBalancers:
        keys = map(service_of_mark, scopes)
        return WriteBalancers(session, BalancerBatch({key: self._balancers.get(key, ()) for key in keys}, may_remove), self._view)

    def _told(self, refused: Mapping[str, str], settled: Collection[str]) -> None:  # noqa: ARG002 - the book has all of them
        left = {service_of_mark(scope): f"Service {service_of_mark(scope)}: {why}" for scope, why in refused.items()}
        self._lacking.take({**self._book.lacking, **left}, self._recipients)
        self._lacking.write()

    def _recipients(self, key: str) -> Sequence[Recipient]:
        namespace, _, name = key.partition("/")
        uid = self._book.uid_of(key)
        return [Recipient(namespace, name, uid, "", SERVICES.kind, SERVICES.api_version)] if uid else []

    def _tell_service(self, recipient: Recipient, findings: Sequence[Finding]) -> None:
        self.on_news(recipient, findings)

    def _join(self, facts: ServiceFacts) -> ServiceFacts:
        """The facts with whose the nodes' addresses are: the same object as before where neither has changed."""
        nodes = self._sources.nodes.objects() or _NONE
        if self._joined is None or self._joined[0] is not facts or self._joined[1] is not nodes:
            self._joined = facts, nodes, with_nodes(facts, nodes)
            if missing := [name for name in (CLUSTER_GROUP, GATEWAY_GROUP) if name not in facts.groups]:
                say("warning", f"OVN serves no Services: its northbound database has no group {missing[0]}", remedy=_REMEDY)
        return self._joined[2]


def _find_changes(former: Mapping[str, T], now: Mapping[str, T]) -> dict[str, T | None]:
    """What is another object now, and None for what is gone. What has not changed is the same object."""
    if former is now:
        return {}
    changes: dict[str, T | None] = {key: each for key, each in now.items() if former.get(key) is not each}
    return changes | dict.fromkeys(former.keys() - now.keys())
