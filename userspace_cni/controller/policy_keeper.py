"""NetworkPolicies as a part of a controller: it watches them and namespaces, and keeps the rows that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from userspace_cni.controller.controller_metrics import ControllerMetrics
from userspace_cni.controller.northbound_hold import NorthboundHold
from userspace_cni.controller.pod_changes import PodChanges
from userspace_cni.controller.policy_rounds import PolicyRounds, PolicySources
from userspace_cni.controller.row_keeper import RowKeeper
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.object_watch import ObjectWatch
from userspace_cni.kube.resources import MULTI_NETWORK_POLICIES, NAMESPACES, NETWORK_POLICIES, ApiResource
from userspace_cni.ovn.policy.policy_objects import keep_multi_policy, keep_namespace, keep_policy


class PolicyKeeper(RowKeeper):
    """The threads. `hold`: the session with the database, and `pods`: the watch of pods, which their owner ends; `metrics` gets
    their numbers."""

    def __init__(
        self,
        session: ApiSession,
        hold: NorthboundHold,
        pods: PodChanges,
        metrics: ControllerMetrics,
        watch_times: WatchTimes | None = None,
    ) -> None:
        super().__init__()

        def watch(resource: ApiResource, keep: Callable[[Mapping[str, object]], object]) -> ObjectWatch:
            return ObjectWatch(session, resource, keep=keep, on_change=self.ask, times=watch_times)

        self._sources = PolicySources(
            pods,
            pods.read_apart(),
            watch(NAMESPACES, keep_namespace),
            watch(NETWORK_POLICIES, keep_policy),
            watch(MULTI_NETWORK_POLICIES, keep_multi_policy),
        )
        self.rounds = PolicyRounds(hold, self._sources)
        self.rounds.on_write = lambda change: metrics.count_row("policy_rows", change)
        self.rounds.on_news = self._tell
        self._add_numbers(metrics)

    def start(self) -> None:
        """Begin. Raises Unavailable."""
        self.begin(*self._sources.watches, self.rounds)

    def ask(self) -> None:
        """Have a round soon: something has changed, as who leads."""
        self.rounds.ask()

    @property
    def obstacles(self) -> list[str]:
        """Why it could not act now."""
        found = (*self._sources.problems, self._sources.lacking, self.rounds.problem or self.rounds.pending)
        return [each for each in found if each]

    def _add_numbers(self, metrics: ControllerMetrics) -> None:
        rounds = self.rounds
        metrics.add("ovn_policies", "NetworkPolicies and MultiNetworkPolicies that the controller knows", lambda: rounds.policies)
        metrics.add("ovn_policies_closed", "Of these, those that let less through than they say", lambda: rounds.closed)
        metrics.add(
            "ovn_policies_without_fragments",
            "Of these, those with rules that do not cover fragments",
            lambda: rounds.without_fragments,
        )
        metrics.add("ovn_policy_rows", "Port groups and address sets that policies have", lambda: rounds.scopes)
        metrics.add("ovn_policies_full_seconds", "Seconds of the last comparison of all policies", lambda: rounds.full_s)
