"""Which pods are selected by which selectors, kept while pods, namespaces and selectors come and go. Pure.

A change of one pod is judged against the selectors that can select it, and a new selector against the pods that it can select:
both are found by a label that they have in common. So work follows from what has changed and from what is selected, and not from
the product of all pods and all policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from userspace_cni.ovn.policy.label_selectors import Anchor, Labels, LabelSelector

PodKey = str
"""A pod, as "namespace/name"."""


@dataclass(frozen=True, slots=True)
class PolicyPod:
    """A pod as far as policies follow from it. `owner`: after which its logical ports are called. `ports`: those of its
    containers that have a name: by protocol and name."""

    namespace: str
    name: str
    owner: str
    labels: Labels
    ports: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def key(self) -> PodKey:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class PodChoice:
    """A choice of pods: of the namespace called `namespace`, or of those that `namespaces` selects."""

    namespace: str
    namespaces: LabelSelector | None
    pods: LabelSelector


class PodSelection:
    """A choice, and the pods that are chosen now. It is one object as long as it has a user."""

    def __init__(self, choice: PodChoice) -> None:
        self.choice = choice
        self.members: set[PodKey] = set()
        self.users = 0


class _Chosen:
    """Selections of one namespace, or of one choice of namespaces, by a label that their pods have."""

    def __init__(self) -> None:
        self.by_label: dict[Anchor, dict[PodSelection, None]] = {}
        self.others: dict[PodSelection, None] = {}
        self.count = 0

    def add(self, selection: PodSelection) -> None:
        self.count += 1
        for anchor in selection.choice.pods.anchors:
            self.by_label.setdefault(anchor, {})[selection] = None
        if not selection.choice.pods.anchors:
            self.others[selection] = None

    def remove(self, selection: PodSelection) -> None:
        self.count -= 1
        for anchor in selection.choice.pods.anchors:
            found = self.by_label[anchor]
            del found[selection]
            if not found:
                del self.by_label[anchor]
        self.others.pop(selection, None)

    def find(self, labels: Labels) -> Iterator[PodSelection]:
        """Those that select these labels, one of several labels more than once."""
        for anchor in _anchors(labels) if self.by_label else ():
            for each in self.by_label.get(anchor, ()):
                if each.choice.pods.selects(labels):
                    yield each
        for each in self.others:
            if each.choice.pods.selects(labels):
                yield each


class PodSelections:
    """For one thread at a time."""

    def __init__(self) -> None:
        self.pods: dict[PodKey, PolicyPod] = {}
        self._namespaces: dict[str, Labels] = {}
        self._in_namespace: dict[str, set[PodKey]] = {}
        self._with_label: dict[Anchor, set[PodKey]] = {}
        self._selections: dict[PodChoice, PodSelection] = {}
        self._of_namespace: dict[str, _Chosen] = {}
        self._of_choice: dict[LabelSelector, _Chosen] = {}
        self._chosen_namespaces: dict[LabelSelector, set[str]] = {}
        self._choices: dict[str, set[LabelSelector]] = {}
        """The choices of namespaces by which a namespace is chosen."""

    # -- selections ---------------------------------------------------------------------------------------------------------

    def use(self, choice: PodChoice) -> PodSelection:
        """The selection of this choice, which has one more user from now on."""
        selection = self._selections.get(choice)
        if selection is None:
            selection = self._selections[choice] = PodSelection(choice)
            if choice.namespaces is not None:
                self._use_namespaces(choice.namespaces)
            self._home(choice).add(selection)
            selection.members.update(self._list_chosen(choice))
        selection.users += 1
        return selection

    def leave(self, selection: PodSelection) -> None:
        """One user less; without any it is forgotten."""
        selection.users -= 1
        choice = selection.choice
        if selection.users:
            return
        del self._selections[choice]
        home = self._home(choice)
        home.remove(selection)
        if home.count:
            return
        if choice.namespaces is None:
            del self._of_namespace[choice.namespace]
        else:
            del self._of_choice[choice.namespaces]
            for name in self._chosen_namespaces.pop(choice.namespaces):
                self._choices[name].discard(choice.namespaces)

    def find(self, namespace: str, labels: Labels) -> set[PodSelection]:
        """The selections by which a pod of the namespace with these labels is chosen."""
        found = set(self._of_namespace[namespace].find(labels)) if namespace in self._of_namespace else set()
        for choice in self._choices.get(namespace, ()):
            found.update(self._of_choice[choice].find(labels))
        return found

    def _home(self, choice: PodChoice) -> _Chosen:
        if choice.namespaces is None:
            return self._of_namespace.setdefault(choice.namespace, _Chosen())
        return self._of_choice.setdefault(choice.namespaces, _Chosen())

    def _use_namespaces(self, selector: LabelSelector) -> None:
        if selector in self._chosen_namespaces:
            return
        found = {name for name, labels in self._namespaces.items() if selector.selects(labels)}
        self._chosen_namespaces[selector] = found
        for name in found:
            self._choices.setdefault(name, set()).add(selector)

    def _list_chosen(self, choice: PodChoice) -> Iterator[PodKey]:
        """The pods that a choice selects, from the fewest that it can select."""
        names = {choice.namespace} if choice.namespaces is None else self._chosen_namespaces[choice.namespaces]
        anchors = choice.pods.anchors
        labelled = [self._with_label.get(each, set()) for each in anchors]
        inside = [self._in_namespace.get(each, set()) for each in names]
        if anchors and sum(map(len, labelled)) <= sum(map(len, inside)):
            candidates: Iterable[PodKey] = set().union(*labelled)
        else:
            candidates = (key for keys in inside for key in keys)
        for key in candidates:
            pod = self.pods[key]
            if pod.namespace in names and choice.pods.selects(pod.labels):
                yield key

    # -- what is selected ---------------------------------------------------------------------------------------------------

    def take_pod(self, key: PodKey, pod: PolicyPod | None) -> tuple[set[PodSelection], set[PodSelection]]:
        """The pod is this from now on, None for none: the selections that it has left, and those that it has come to."""
        former = self.pods.pop(key, None)
        left = self.find(former.namespace, former.labels) if former is not None else set()
        come: set[PodSelection] = set()
        if former is not None:
            self._forget(key, former)
        if pod is not None:
            self.pods[key] = pod
            self._in_namespace.setdefault(pod.namespace, set()).add(key)
            for anchor in _anchors(pod.labels):
                self._with_label.setdefault(anchor, set()).add(key)
            come = self.find(pod.namespace, pod.labels)
        for each in left - come:
            each.members.discard(key)
        for each in come - left:
            each.members.add(key)
        return left - come, come - left

    def _forget(self, key: PodKey, pod: PolicyPod) -> None:
        self._in_namespace[pod.namespace].discard(key)
        if not self._in_namespace[pod.namespace]:
            del self._in_namespace[pod.namespace]
        for anchor in _anchors(pod.labels):
            found = self._with_label[anchor]
            found.discard(key)
            if not found:
                del self._with_label[anchor]

    def take_namespace(self, name: str, labels: Labels | None) -> list[tuple[PodSelection, PodKey, bool]]:
        """The namespace has these labels from now on, None for no namespace: each selection with a pod that it chooses now (True)
        or does not any more (False)."""
        if labels is None:
            self._namespaces.pop(name, None)
        else:
            self._namespaces[name] = labels
        former = self._choices.get(name, set())
        now = {each for each in self._chosen_namespaces if labels is not None and each.selects(labels)}
        changed = []
        for selector in former ^ now:
            is_chosen = selector in now
            (self._chosen_namespaces[selector].add if is_chosen else self._chosen_namespaces[selector].discard)(name)
            for key in self._in_namespace.get(name, ()):
                for selection in set(self._of_choice[selector].find(self.pods[key].labels)):
                    (selection.members.add if is_chosen else selection.members.discard)(key)
                    changed.append((selection, key, is_chosen))
        if now:
            self._choices[name] = now
        else:
            self._choices.pop(name, None)
        return changed


def _anchors(labels: Labels) -> Iterator[Anchor]:
    for key, value in labels.items():
        yield key, value
        yield key, None
