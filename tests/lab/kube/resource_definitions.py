"""Claims, classes and slices of devices (`resource.k8s.io/v1`) as definitions, for API servers that do not have them.

The schemas have the fields, required ones, list types and limits that Kubernetes publishes, as far as a definition can say them.
What it cannot: that a claim's spec never changes, that exactly one of several fields is set, and who may write which status.
`shareID` has a default, because a key of a list has to have one in a definition. Debian's Kubernetes 1.20 takes them without that
key, and without the fields to select by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.lab.kube.apiserver import ApiServer

GROUP: Final = "resource.k8s.io"
CLAIMS: Final = f"resourceclaims.{GROUP}"
CLASSES: Final = f"deviceclasses.{GROUP}"
SLICES: Final = f"resourceslices.{GROUP}"
WITHOUT_CAPACITY: Final = frozenset({"allowMultipleAllocations", "requestPolicy", "shareID", "consumedCapacity"})
"""What a server drops silently whose gate DRAConsumableCapacity is off."""
WITHOUT_TAINTS: Final = frozenset({"taints"})
"""The same of DRADeviceTaints."""

Schema = dict[str, Any]
_LABEL: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


def _text(longest: int = 0, *, pattern: str = "", of: Sequence[str] = ()) -> Schema:
    limits = {"maxLength": longest, "pattern": pattern, "enum": list(of)}
    return {"type": "string", **{key: value for key, value in limits.items() if value}}


def _whole(least: int | None = None) -> Schema:
    return {"type": "integer", "format": "int64", **({} if least is None else {"minimum": least})}


def _object(properties: Mapping[str, Schema], *required: str) -> Schema:
    return {"type": "object", "properties": dict(properties), **({"required": list(required)} if required else {})}


def _list(items: Schema, most: int, *keys: str) -> Schema:
    kind = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)} if keys else {}
    return {"type": "array", "items": items, "maxItems": most, **({"x-kubernetes-list-type": "atomic"} | kind)}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


_ANY: Final[Schema] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_FLAG: Final[Schema] = {"type": "boolean"}
_QUANTITY: Final[Schema] = {"x-kubernetes-int-or-string": True}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_DRIVER: Final = _text(63, pattern=_SUBDOMAIN)
_DEVICE: Final = _text(63, pattern=_LABEL)
_SHARE: Final = {**_text(63), "default": ""}
_OPAQUE: Final = _object({"driver": _DRIVER, "parameters": _ANY}, "driver", "parameters")
_SELECTORS: Final = _list(_object({"cel": _object({"expression": _text(10240)}, "expression")}), 32)
_EFFECT: Final = _text(of=("NoSchedule", "NoExecute", "None"))
_TOLERATIONS: Final = _list(
    _object(
        {
            "key": _text(),
            "operator": {**_text(of=("Equal", "Exists")), "default": "Equal"},
            "value": _text(),
            "effect": _EFFECT,
            "tolerationSeconds": _whole(),
        }
    ),
    16,
)
_NODES: Final = _object({"nodeSelectorTerms": _list(_ANY, 1)}, "nodeSelectorTerms")
_REQUESTED: Final = {
    "deviceClassName": _text(253, pattern=_SUBDOMAIN),
    "selectors": _SELECTORS,
    "allocationMode": {**_text(of=("ExactCount", "All")), "default": "ExactCount"},
    "count": _whole(1),
    "tolerations": _TOLERATIONS,
    "capacity": _object({"requests": _map(_QUANTITY)}),
}
_REQUEST: Final = _object(
    {
        "name": _DEVICE,
        "exactly": _object({**_REQUESTED, "adminAccess": _FLAG}, "deviceClassName"),
        "firstAvailable": _list(_object({**_REQUESTED, "name": _DEVICE}, "name", "deviceClassName"), 8),
    },
    "name",
)
_CONSTRAINT: Final = _object({"requests": _list(_text(), 32), "matchAttribute": _text(), "distinctAttribute": _text()})
_CLAIM_SPEC: Final = _object(
    {
        "devices": _object(
            {
                "requests": _list(_REQUEST, 32),
                "constraints": _list(_CONSTRAINT, 32),
                "config": _list(_object({"requests": _list(_text(), 32), "opaque": _OPAQUE}), 32),
            }
        )
    }
)
_ALLOCATED: Final = {"driver": _DRIVER, "pool": _text(253), "device": _DEVICE}
_RESULT: Final = _object(
    {
        "request": _text(),
        **_ALLOCATED,
        "adminAccess": _FLAG,
        "tolerations": _TOLERATIONS,
        "bindingConditions": _list(_text(316), 4),
        "bindingFailureConditions": _list(_text(316), 4),
        "shareID": _text(63),
        "consumedCapacity": _map(_QUANTITY),
    },
    "request",
    *_ALLOCATED,
)
_ALLOCATION: Final = _object(
    {
        "devices": _object(
            {
                "results": _list(_RESULT, 32),
                "config": _list(
                    _object(
                        {
                            "source": _text(of=("FromClass", "FromClaim")),
                            "requests": _list(_text(), 32),
                            "opaque": _OPAQUE,
                        },
                        "source",
                    ),
                    64,
                ),
            }
        ),
        "nodeSelector": _NODES,
        "allocationTimestamp": _TIME,
    }
)
_CONDITION: Final = _object(
    {
        "type": _text(316),
        "status": _text(of=("True", "False", "Unknown")),
        "observedGeneration": _whole(0),
        "lastTransitionTime": _TIME,
        "reason": {**_text(1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"), "minLength": 1},
        "message": _text(32768),
    },
    *("type", "status", "lastTransitionTime", "reason", "message"),
)
_DEVICE_STATUS: Final = _object(
    {
        **_ALLOCATED,
        "shareID": _SHARE,
        "conditions": _list(_CONDITION, 8, "type"),
        "data": _ANY,
        "networkData": _object(
            {
                "interfaceName": _text(256),
                "ips": _list(_text(), 16),
                "hardwareAddress": _text(128),
            }
        ),
    },
    *_ALLOCATED,
)
_CONSUMER: Final = {"apiGroup": _text(), "resource": _text(), "name": _text(), "uid": _text()}
_CLAIM_STATUS: Final = _object(
    {
        "allocation": _ALLOCATION,
        "reservedFor": _list(_object(_CONSUMER, "resource", "name", "uid"), 256, "uid"),
        "devices": _list(_DEVICE_STATUS, 32, "driver", "device", "pool", "shareID"),
    }
)
_ATTRIBUTE: Final = _object({"int": _whole(), "bool": _FLAG, "string": _text(64), "version": _text(64)})
_POLICY: Final = _object(
    {
        "default": _QUANTITY,
        "validValues": _list(_QUANTITY, 10),
        "validRange": _object({"min": _QUANTITY, "max": _QUANTITY, "step": _QUANTITY}, "min"),
    }
)
_COUNTERS: Final = _map(_object({"value": _QUANTITY}, "value"))
_OFFERED: Final = _object(
    {
        "name": _DEVICE,
        "attributes": _map(_ATTRIBUTE),
        "capacity": _map(_object({"value": _QUANTITY, "requestPolicy": _POLICY}, "value")),
        "consumesCounters": _list(_object({"counterSet": _DEVICE, "counters": _COUNTERS}, "counterSet", "counters"), 32),
        "nodeName": _text(),
        "nodeSelector": _NODES,
        "allNodes": _FLAG,
        "taints": _list(_object({"key": _text(), "value": _text(), "effect": _EFFECT, "timeAdded": _TIME}, "key", "effect"), 16),
        "bindsToNode": _FLAG,
        "bindingConditions": _list(_text(316), 4),
        "bindingFailureConditions": _list(_text(316), 4),
        "allowMultipleAllocations": _FLAG,
    },
    "name",
)
_SLICE_SPEC: Final = _object(
    {
        "driver": _DRIVER,
        "pool": _object(
            {"name": _text(253), "generation": _whole(0), "resourceSliceCount": _whole(1)},
            *("name", "generation", "resourceSliceCount"),
        ),
        "nodeName": _text(253),
        "nodeSelector": _NODES,
        "allNodes": _FLAG,
        "devices": _list(_OFFERED, 128),
        "perDeviceNodeSelection": _FLAG,
        "sharedCounters": _list(_object({"name": _DEVICE, "counters": _COUNTERS}, "name", "counters"), 8),
    },
    *("driver", "pool"),
)
_CLASS_SPEC: Final = _object(
    {
        "selectors": _SELECTORS,
        "config": _list(_object({"opaque": _OPAQUE}), 32),
        "extendedResourceName": _text(),
    }
)


def resource_definitions(lacking: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """The definitions; `lacking`: fields that the server does not have, wherever they are, and drops."""
    template = _object({"metadata": _ANY, "spec": _CLAIM_SPEC}, "spec")
    kinds = [
        _definition("ResourceClaim", {"spec": _CLAIM_SPEC, "status": _CLAIM_STATUS}, "Namespaced"),
        _definition("ResourceClaimTemplate", {"spec": template}, "Namespaced"),
        _definition("DeviceClass", {"spec": _CLASS_SPEC}),
        _definition("ResourceSlice", {"spec": _SLICE_SPEC}, selected=("spec.nodeName", "spec.driver")),
    ]
    return [_without(each, lacking) for each in kinds] if lacking else kinds


def define_resources(api: ApiServer, lacking: frozenset[str] = frozenset()) -> None:
    """Serve them from now on; `lacking` as `resource_definitions` has it."""
    for each in resource_definitions(lacking):
        api.define(each)


def _definition(kind: str, parts: Mapping[str, Schema], scope: str = "Cluster", selected: Sequence[str] = ()) -> dict[str, Any]:
    plural = f"{kind.lower()}es" if kind.endswith("s") else f"{kind.lower()}s"
    whole = {"apiVersion": _text(), "kind": _text(), "metadata": {"type": "object"}, **parts}
    schema = _object(whole, "spec")
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    version |= {"subresources": {"status": {}}} if "status" in parts else {}
    version |= {"selectableFields": [{"jsonPath": f".{field}"} for field in selected]} if selected else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/4381"},
        },
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


def _without(thing: Any, names: frozenset[str]) -> Any:
    """The part of a definition without the fields of these names, and without them as keys of lists."""
    if isinstance(thing, list):
        return [_without(each, names) for each in thing if not (isinstance(each, str) and each in names)]
    if isinstance(thing, dict):
        return {key: _without(value, names) for key, value in thing.items() if key not in names}
    return thing
