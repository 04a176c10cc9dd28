"""What a network of a namespace may have root do on this node. Pure.

Whoever writes a NetworkAttachmentDefinition or a pod is a user of a namespace, a tenant; the administrator says in the settings
what he may name. Only an ADD that comes with a pod of a cluster is bound: without one the configuration is the administrator's
own. What is attached is checked, deleted and collected whatever the settings say by then.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """The directories below which a namespace's `sharedDir` must lie, and `said_by` which setting."""

    namespace: str
    directories: tuple[str, ...]
    said_by: str
