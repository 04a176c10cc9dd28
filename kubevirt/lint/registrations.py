"""What a KubeVirt or HyperConverged object registers and allows, and what of it would fail. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kubevirt.lint.reading import DocumentValue
from kubevirt.plugin_schema import DOMAIN_HOOKS, GUEST_DEFINITION, LAUNCHER_HOOKS, Version, read_version

_OUR_IMAGE: Final = re.compile(r"userspace-cni|kubevirt-sidecar", re.IGNORECASE)
_UPSTREAM_IMAGE: Final = re.compile(r"vhost-?user", re.IGNORECASE)
"""Images of other vhost-user bindings, which have one fixed name for their socket."""
_OUR_PLUGIN: Final = "userspace-cni-"
"""How our manifests begin the names of a Plugin and of its policy."""
_HCO_GATES: Final = "kubevirt.kubevirt.io/jsonpatch"


@dataclass(frozen=True)
class Registration:
    """A network binding plugin: its name, and what the cluster says of it."""

    name: str
    spot: DocumentValue
    operator: str
    """Kind of the object that has it."""

    @property
    def image(self) -> str:
        """Its sidecar's; "" for none."""
        return self.spot.text("sidecarImage")

    @property
    def is_ours(self) -> bool:
        """Whether its sidecar is this project's, as far as the image's name tells."""
        return bool(_OUR_IMAGE.search(self.image))

    @property
    def is_vhost_user(self) -> bool:
        """Whether it is a vhost-user binding, by what it is called."""
        return self.is_ours or "vhost" in self.name.lower() or bool(_UPSTREAM_IMAGE.search(self.image))


@dataclass(frozen=True)
class RegisteredObjects:
    """What all objects together register.

    `whole`: what is not registered here is registered nowhere, for the objects are not just patches; `gated`: the same of feature
    gates, of which HyperConverged objects do not tell all. `named`: the bindings that the caller names as ours; else names tell.
    """

    registrations: tuple[Registration, ...] = ()
    gates: frozenset[str] = frozenset()
    whole: bool = False
    gated: bool = False
    plugins: tuple[DocumentValue, ...] = ()
    named: frozenset[str] = frozenset()
    kubevirts: tuple[DocumentValue, ...] = ()
    operators: tuple[DocumentValue, ...] = ()
    version: Version | None = None
    """KubeVirt's major and minor, where a KubeVirt object with its status was given."""

    def find_registrations(self, name: str) -> list[Registration]:
        """Every registration of that name: one, unless KubeVirt and HyperConverged objects are both given."""
        return self._by_name.get(name, [])

    @cached_property
    def _by_name(self) -> Mapping[str, list[Registration]]:
        found: dict[str, list[Registration]] = {}
        for each in self.registrations:
            found.setdefault(each.name, []).append(each)
        return found

    def is_vhost_user(self, name: str) -> bool:
        """Whether interfaces with that binding are vhost-user ones."""
        if self.named:
            return name in self.named
        found = self.find_registrations(name)
        return any(each.is_vhost_user for each in found) if found else "vhost" in name.lower()

    @cached_property
    def hooked(self) -> list[DocumentValue]:
        """The Plugins with a sidecar that edits definitions, in the form of some version."""
        return [spot for spot in self.plugins if definition_hooks(spot)]

    @cached_property
    def pruned(self) -> list[DocumentValue]:
        """The Plugins that are there for a vhost-user binding and have no such sidecar."""
        return [
            spot for spot in self.plugins if not definition_hooks(spot) and not _asked_otherwise(spot) and self._is_meant(spot)
        ]

    def is_our_plugin(self, spot: DocumentValue) -> bool:
        """Whether a Plugin is of our manifests, by its name or its policy's."""
        policies = (each.text("name") for each in spot.child("spec").items("mutatingAdmissionPolicies"))
        return any(name.startswith(_OUR_PLUGIN) for name in (spot.child("metadata").text("name"), *policies))

    def _is_meant(self, spot: DocumentValue) -> bool:
        """Whether a Plugin is ours, or its condition names a vhost-user binding that has no sidecar of KubeVirt's."""
        condition = spot.child("spec").text("condition")
        return self.is_our_plugin(spot) or any(
            f'"{each.name}"' in condition or f"'{each.name}'" in condition for each in self.vhost_user() if not each.image
        )

    def vhost_user(self) -> list[Registration]:
        return [each for each in self.registrations if self.is_vhost_user(each.name)]


def read_cluster(objects: Sequence[tuple[str, DocumentValue]], named: Collection[str] = ()) -> RegisteredObjects:
    """What these objects, by their kinds, say; of other kinds nothing is read."""
    kubevirts = tuple(spot for kind, spot in objects if kind == "KubeVirt")
    operators = tuple(spot for kind, spot in objects if kind == "HyperConverged")
    registrations = [*_registrations(kubevirts, "KubeVirt"), *_registrations(operators, "HyperConverged")]
    gates = {gate for spot in kubevirts for gate in configuration(spot).child("developerConfiguration").texts("featureGates")}
    gates |= {gate for spot in operators for gate in _patched_gates(spot)}
    return RegisteredObjects(
        registrations=tuple(registrations),
        gates=frozenset(gates),
        whole=any(map(is_whole, (*kubevirts, *operators))),
        gated=any(map(is_whole, kubevirts)),
        plugins=tuple(spot for kind, spot in objects if kind == "Plugin"),
        named=frozenset(named),
        kubevirts=kubevirts,
        operators=operators,
        version=next((version for spot in kubevirts if (version := _version(spot))), None),
    )


def definition_hooks(plugin: DocumentValue) -> list[DocumentValue]:
    """The hooks of a Plugin by which a sidecar edits definitions."""
    spec = plugin.child("spec")
    former = [hook for hook in spec.items(DOMAIN_HOOKS) if hook.has("sidecar")]
    current = (hook for hook in spec.items(LAUNCHER_HOOKS) if hook.has("sidecar"))
    return [*former, *(hook for hook in current if GUEST_DEFINITION in hook.child("sidecar").texts("permittedHooks"))]


def _asked_otherwise(plugin: DocumentValue) -> bool:
    """Whether a Plugin has a sidecar that is asked for something else: then no field was dropped."""
    return any(hook.has("sidecar") for hook in plugin.child("spec").items(LAUNCHER_HOOKS))


def configuration(kubevirt: DocumentValue) -> DocumentValue:
    return kubevirt.child("spec", "configuration")


def is_whole(spot: DocumentValue) -> bool:
    """Whether it is the object itself, and no patch with a registration."""
    fetched = spot.has("status") or spot.child("metadata").has("uid")
    kept = configuration(spot).value if spot.text("kind") == "KubeVirt" else spot.child("spec").value
    return fetched or bool(set(kept or ()) - {"network", "networkBinding", "networking", "configuration"})


def _version(kubevirt: DocumentValue) -> Version | None:
    return read_version(kubevirt.child("status").text("observedKubeVirtVersion"))


def _registrations(spots: Sequence[DocumentValue], kind: str) -> Iterator[Registration]:
    for spot in spots:
        for bindings in _bindings(spot, kind):
            for name in bindings.value or ():
                if isinstance(name, str):
                    yield Registration(name, bindings.child(name), kind)


def _bindings(spot: DocumentValue, kind: str) -> list[DocumentValue]:
    """Where an object registers: v1beta1 and v1 of HyperConverged have it in different places."""
    if kind == "KubeVirt":
        return [configuration(spot).child("network", "binding")]
    spec = spot.child("spec")
    return [spec.child("networkBinding"), spec.child("networking", "networkBinding")]


def _patched_gates(spot: DocumentValue) -> Iterator[str]:
    """Gates that a HyperConverged object sets through its annotation of JSON patches for the KubeVirt object."""
    patches = spot.child("metadata", "annotations").json(_HCO_GATES)
    for patch in patches.value if patches and isinstance(patches.value, list) else ():
        path, value = (patch.get("path"), patch.get("value")) if isinstance(patch, dict) else ("", None)
        if isinstance(path, str) and "featureGates" in path:
            yield from (gate for gate in (value if isinstance(value, list) else [value]) if isinstance(gate, str))
