"""Objects that are given more than once: the cluster has only one of them, and which one it is, is not in the files. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kubevirt.lint.kinds import MACHINES
from kubevirt.lint.reading import DocumentValue
from kubevirt.lint.registrations import is_whole


def without_copies(objects: Sequence[tuple[str, DocumentValue]]) -> list[tuple[str, DocumentValue]]:
    """The objects with their kinds, without those that say what an earlier one of their name says. Each later one is reported.

    A VM in another file is kept: its networks may be that file's.
    A patch beside the KubeVirt or HyperConverged object that it is for is no second one, nor is a pod seen at two times.
    """
    first: dict[tuple[str, str, str], DocumentValue] = {}
    kept = []
    for kind, spot in objects:
        metadata = spot.child("metadata")
        name, namespace = metadata.text("name"), metadata.text("namespace")
        other = first.setdefault((kind, namespace, name), spot) if name and kind != "Pod" else spot
        if other is spot or _is_patch(kind, spot, other):
            kept.append((kind, spot))
            continue
        same = _same(other, spot)
        apart = other.report.file != spot.report.file
        if not same or (apart and kind in MACHINES):
            kept.append((kind, spot))
        where = f"in {other.report.file} too" if apart else "twice in this file"
        contents = "with the same content" if same else "with another content: the one that is applied last counts"
        full = f"{namespace}/{name}" if namespace else name
        spot.find("given-twice", "warning", f"{kind} {full} is given {where}, {contents}", "leave one of the two out")
    return kept


def _is_patch(kind: str, spot: DocumentValue, other: DocumentValue) -> bool:
    return kind in {"KubeVirt", "HyperConverged"} and is_whole(spot) != is_whole(other)


def _same(one: DocumentValue, other: DocumentValue) -> bool:
    try:
        return bool(one.value == other.value)
    except RecursionError:
        return False
