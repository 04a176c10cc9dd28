"""The answers to lists, page by page: what may be taken for one. Pure.

Whatever answers 200 at the server's address is asked: a page without the kind of these things or without a version proves
nothing, least of all that there are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from userspace_cni.kube.resources import ApiResource


@dataclass(frozen=True)
class ListPage:
    """A page of a list: the version of the collection, things, and the token of the next page, "" for none."""

    version: str
    items: Sequence[Any]
    token: str


def page_of(body: Mapping[str, Any], resource: ApiResource) -> ListPage:
    """Read an answer. Raises KeyError, TypeError, AttributeError or ValueError for what is no page of a list of the resource,
    and for a last page after which there are more things."""
    if (body["kind"], body["apiVersion"]) != (f"{resource.kind}List", resource.api_version):
        raise ValueError(body["kind"])
    metadata, items = body["metadata"], body["items"]
    if not isinstance(items, list | None):  # servers before Kubernetes 1.21 wrote null for none
        raise TypeError(type(items))
    token = metadata.get("continue") or ""
    if not token and metadata.get("remainingItemCount"):
        raise ValueError(metadata["remainingItemCount"])
    for each in items or ():
        require_kind(each, resource)
    return ListPage(text(metadata["resourceVersion"]), items or (), token and text(token))


def require_kind(thing: Mapping[str, Any], resource: ApiResource) -> None:
    """Raise ValueError for what says that it is of another kind. In lists most things say nothing of it."""
    said = thing.get("kind", resource.kind), thing.get("apiVersion", resource.api_version)
    if said != (resource.kind, resource.api_version):
        raise ValueError(said)


def text(value: object) -> str:
    """Return a value that must be a text and not empty. Raises ValueError."""
    if not isinstance(value, str) or not value:
        raise ValueError
    return value
