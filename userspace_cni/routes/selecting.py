"""Which pods a Route is for, and by how specific a selector. Pure.

What is not known never counts as "no": a pod whose owners or whose namespace's labels are not known yet is excluded wherever they
could exclude it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from userspace_cni.routes.cluster_facts import RoutePod
from userspace_cni.routes.resource import NamespaceSelector, PodSelector, RouteObject, Selection, WorkloadSelector

_BY_POD: Final = 3
_BY_WORKLOAD: Final = 2
_BY_NAMESPACE: Final = 1
_BY_ALL: Final = 0
"""How specific a selector is."""
Labels = Mapping[str, str]


def specificity(route: RouteObject, pod: RoutePod, labels: Labels | None, must_name: bool) -> int | None:
    """How specific the selector is by which the Route has the pod; None where it has not.

    `labels`: of the pod's namespace, None while they are not known. `must_name`: the Route has it only if it names the namespace.
    """
    if not route.exclude.is_empty and _excludes(route.exclude, pod, labels):
        return None
    if route.selection.is_empty:
        return None if must_name else _BY_ALL
    return max((how for how, named in _matching(route.selection, pod, labels or {}) if named or not must_name), default=None)


def _matching(selection: Selection, pod: RoutePod, labels: Labels) -> Iterator[tuple[int, bool]]:
    """How specific each selector of the pod is, and whether it names the pod's namespace."""
    for selector in selection.pods:
        if _is_pod(selector, pod):
            yield _BY_POD, bool(selector.namespace)
    for workload in selection.workloads:
        if pod.owners and workload.namespace == pod.namespace and (workload.kind, workload.name) in pod.owners:
            yield _BY_WORKLOAD, True
    for namespace in selection.namespaces:
        if _is_namespace(namespace, pod.namespace, labels):
            yield _BY_NAMESPACE, bool(namespace.name)


def _excludes(selection: Selection, pod: RoutePod, labels: Labels | None) -> bool:
    return (
        any(_is_pod(each, pod) for each in selection.pods)
        or any(_may_own(each, pod) for each in selection.workloads)
        or any(_is_namespace(each, pod.namespace, each.labels if labels is None else labels) for each in selection.namespaces)
    )


def _is_pod(selector: PodSelector, pod: RoutePod) -> bool:
    return (
        selector.namespace in ("", pod.namespace)
        and selector.name in ("", pod.name)
        and all(pod.labels.get(key) == value for key, value in selector.labels.items())
    )


def _is_namespace(selector: NamespaceSelector, namespace: str, labels: Mapping[str, str]) -> bool:
    return selector.name in ("", namespace) and all(labels.get(key) == value for key, value in selector.labels.items())


def _may_own(workload: WorkloadSelector, pod: RoutePod) -> bool:
    """Whether the pod is of the workload, or may be while its owners are not known."""
    if workload.namespace != pod.namespace:
        return False
    return pod.owners is None or (workload.kind, workload.name) in pod.owners
