"""All Services of a cluster, and the load balancers that they are to have. Pure.

A Service is judged again when it, one of its slices, or something else that it depends on has changed. What comes out depends on
what there is, and not on the order in which it came, but for external addresses that several Services ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from userspace_cni.base.subnets import Address
from userspace_cni.ovn.services.balancer_rows import Balancer, Claim, ServiceBalancers, ServiceFacts, ServiceTargets
from userspace_cni.ovn.services.external_claims import ExternalClaims
from userspace_cni.ovn.services.service_objects import ServedService, ServiceSlice
from userspace_cni.ovn.topology import HAIRPIN_SOURCES

API_SERVER: Final = "default/kubernetes"
_SHOWN: Final = 4


class ServiceBook:
    """`held`: which Service has which external address by the rows of the database."""

    def __init__(self, held: Mapping[Claim, str] | None = None) -> None:
        self._services: dict[str, ServedService] = {}
        self._slices: dict[str, ServiceSlice] = {}
        self._slices_of: dict[str, set[str]] = {}
        self._owners: dict[Address, str] = {}
        self._ips: dict[str, tuple[Address, ...]] = {}
        self._claims = ExternalClaims(held or {})
        self._facts = ServiceFacts()
        self._asked: set[str] = set()
        self.lacking: dict[str, str] = {}
        """Why something of a Service is not served, by "namespace/name"."""

    def take_services(self, changes: Mapping[str, ServedService | None]) -> None:
        """Note that these are so now, None for one that is gone."""
        for key, service in changes.items():
            if service is None:
                self._services.pop(key, None)
            else:
                self._services[key] = service
        self._asked |= changes.keys()

    def take_slices(self, changes: Mapping[str, ServiceSlice | None]) -> None:
        """As `take_services`."""
        for name, each in changes.items():
            former = self._slices.pop(name, None)
            if former is not None:
                self._slices_of[former.service].remove(name)
                if not self._slices_of[former.service]:
                    del self._slices_of[former.service]
                self._asked.add(former.service)
            if each is not None and each.service:
                self._slices[name] = each
                self._slices_of.setdefault(each.service, set()).add(name)
                self._asked.add(each.service)
        if API_SERVER in self._asked:
            self._asked |= {key for key, service in self._services.items() if service.external}

    def take_facts(self, facts: ServiceFacts) -> None:
        """Note what else there is."""
        if facts != self._facts:
            self._facts = facts
            self._asked |= self._services.keys()

    def ask(self, keys: Iterable[str]) -> None:
        """Have these judged again."""
        self._asked.update(keys)

    def uid_of(self, key: str) -> str:
        """The UID of a Service, "" for one that is not known."""
        return self._services[key].uid if key in self._services else ""

    def settle(self) -> dict[str, tuple[Balancer, ...]]:
        """The load balancers of each Service that has been asked for, or depends on such a one."""
        settled: dict[str, tuple[Balancer, ...]] = {}
        self._note_ips()
        while self._asked:
            keys, self._asked = sorted(self._asked, key=self._age), set()
            for key in keys:
                settled[key] = tuple(self._judge(key))
        return settled

    def _age(self, key: str) -> tuple[str, str]:
        service = self._services.get(key)
        return (service.created, key) if service else ("", key)

    def _note_ips(self) -> None:
        """Keep whose the Services' own addresses are. Who asks for one of these as an external address is judged again."""
        for key in tuple(self._asked):
            now = self._services[key].ips if key in self._services else ()
            former = self._ips.get(key, ())
            if now != former:
                self._ips.pop(key, None)
                if now:
                    self._ips[key] = now
                for address in former:
                    if self._owners.get(address) == key:
                        del self._owners[address]
                self._owners |= dict.fromkeys(now, key)
                self._asked |= self._claims.list_asking({*former, *now})

    def _judge(self, key: str) -> Iterable[Balancer]:
        service = self._services.get(key)
        external = [each for each in service.external if self._owners.get(each) != key] if service else []
        self._claims.ask(key, external)
        faults = {each: why for each in external if (why := self._why_not(each))}
        wanted = [
            (address, port.protocol, port.port)
            for address in external
            if address not in faults
            for port in (service.ports if service else ())
        ]
        got, refused, left = self._claims.take(key, wanted)
        self._asked |= self._claims.list_asking(left) - {key}
        if service is None or not service.ips:
            self.lacking.pop(key, None)
            return ()
        slices = [self._slices[name] for name in sorted(self._slices_of.get(key, ()))]
        made = ServiceBalancers(key, service, ServiceTargets(slices), got)
        balancers = tuple(made.list(self._facts))
        said = [
            *service.cut,
            *made.cut,
            *(f"external address {address} {why}" for address, why in faults.items()),
            *(f"external address {claim[0]}: Service {holder} has its port {claim[2]}" for claim, holder in refused.items()),
        ]
        self._tell(key, said)
        return balancers

    def _why_not(self, address: Address) -> str:
        """Why no Service but its owner can have this external address; "" where one can."""
        if address in self._owners:
            return f"is that of Service {self._owners[address]}"
        if owner := self._facts.owners.get(address):
            return f"is {owner}"
        if subnet := next((each for each in self._facts.subnets if address in each), None):
            return f"is in {subnet}, a subnet of the cluster's network"
        if str(address) in HAIRPIN_SOURCES:
            return "is the one from which pods reach themselves by Services"
        if address in self._list_servers():
            return "is the API server's"
        return ""

    def _list_servers(self) -> set[Address]:
        slices = (self._slices[name] for name in self._slices_of.get(API_SERVER, ()))
        return {endpoint.address for each in slices for endpoint in each.endpoints}

    def _tell(self, key: str, said: list[str]) -> None:
        if said:
            more = f"; and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
            self.lacking[key] = f"Service {key}: {'; '.join(said[:_SHOWN])}{more}"
        else:
            self.lacking.pop(key, None)
