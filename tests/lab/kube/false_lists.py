"""Answers to a list that are 200 and untrue, as a proxy, a cache or a just restored server may give them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.store import Selection, Store

Falsify = Callable[[dict[str, Any]], dict[str, Any]]
"""A function that makes a false list of a true one."""


def without(*names: str) -> Falsify:
    """A list that lacks these things; without names, an empty list."""

    def falsify(body: dict[str, Any]) -> dict[str, Any]:
        kept = [each for each in body["items"] if names and each["metadata"]["name"] not in names]
        return {**body, "items": kept}

    return falsify


LACKING: dict[str, Falsify] = {
    "empty": without(),
    "null": lambda body: {**body, "items": None},
}
"""Lists that look like true ones: servers used to write null for an empty list."""
NO_LISTS: dict[str, Falsify] = {
    "of another kind": lambda body: {**body, "kind": "SecretList", "items": []},
    "no list": lambda body: {**body, "kind": body["kind"].removesuffix("List"), "items": []},
    "of another group": lambda body: {**body, "apiVersion": "example.org/v1", "items": []},
    "without kind": lambda body: {"apiVersion": body["apiVersion"], "metadata": body["metadata"], "items": []},
    "without version": lambda body: {**body, "metadata": {}, "items": []},
    "with an empty version": lambda body: {**body, "metadata": {"resourceVersion": ""}, "items": []},
    "without metadata": lambda body: {**body, "metadata": None, "items": []},
    "without items": lambda body: {key: each for key, each in body.items() if key != "items"},
    "items are no list": lambda body: {**body, "items": {}},
    "items are false": lambda body: {**body, "items": False},
    "items of another kind": lambda body: {**body, "items": [{**each, "kind": "Secret"} for each in body["items"]]},
    "more than it has": lambda body: {**body, "metadata": {**body["metadata"], "remainingItemCount": 3}, "items": []},
}
"""Answers that are not the list that was asked for."""


def list_falsely(api: ApiServer, store: Store, about: str, falsify: Falsify, times: int | None = 1) -> Fault:
    """Answer the next `times` lists of `store` (None: all) whose paths contain `about` in this way; the fault."""
    body = falsify(store.page(Selection(), 0, ""))
    fault = Fault("LIST", garbage=json.dumps(body).encode(), times=times, about=about)
    api.faults.append(fault)
    return fault


def have_listed_again(api: ApiServer, about: str) -> None:
    """Make clients that watch there list again: their version is forgotten, once."""
    api.faults.append(Fault("WATCH", status=410, times=1, about=about))
    api.close_watches()
