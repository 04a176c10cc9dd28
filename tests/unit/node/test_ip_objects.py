"""IP objects are made from records: their content, their names, and which record counts when there are two."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import Lease
from userspace_cni.node.ip_objects import ip_objects, label

RESULT = {
    "interfaces": [{"name": "h"}, {"name": "net1", "mac": "02:00:00:00:00:01", "sandbox": "/x"}],
    "ips": [{"address": "192.0.2.1/24", "interface": 0}, {"address": "10.56.1.7/16", "interface": 1}],
}


def record(**changes: Any) -> Record:
    """An attachment of pod `web-1` in namespace `default` to a network that names a Subnet."""
    network = {"name": "podnet", "subnet": "pods", "ipam": {"type": "host-local", "ranges": []}}
    lease = Lease("host-local", json.dumps(network), {}, granted=True)
    made = Record("ready", "podnet", "c0ffee", "net1", pod_namespace="default", pod_name="web-1", steps=(lease,), result=RESULT)
    return replace(made, **changes)


def names(*records: Record) -> list[str]:
    return list(ip_objects(records, "n1"))


def only(*records: Record) -> dict[str, Any]:
    [found] = ip_objects(records, "n1").values()
    assert found
    return found


def test_what_is_in_one() -> None:
    """Pod, node, network and Subnet, and the addresses of this interface alone; labels find it by node and Subnet."""
    assert ip_objects([record()], "n1") == {
        "web-1.default.podnet": {
            "metadata": {"labels": {"userspace-cni.io/subnet": "pods", "userspace-cni.io/node": "n1"}},
            "spec": {
                "podName": "web-1",
                "namespace": "default",
                "nodeName": "n1",
                "subnet": "pods",
                "network": "podnet",
                "interface": "net1",
                "ipAddress": "10.56.1.7",
                "v4IpAddress": "10.56.1.7",
                "macAddress": "02:00:00:00:00:01",
                "containerID": "c0ffee",
            },
        }
    }


def test_both_families() -> None:
    """Of several addresses of a family the first counts."""
    ips = [{"address": each, "interface": 1} for each in ("fd00::7/64", "10.56.1.7/16", "10.56.1.8/16")]
    spec = only(record(result={**RESULT, "ips": ips}))["spec"]
    assert (spec["ipAddress"], spec["v4IpAddress"], spec["v6IpAddress"]) == ("10.56.1.7,fd00::7", "10.56.1.7", "fd00::7")


def test_what_has_none() -> None:
    """Attachments that are incomplete, without a pod or without a Subnet have no object."""
    plain = Lease("host-local", '{"name":"n","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}', {}, granted=True)
    none = [record(state="applying"), record(state="deleting"), record(pod_name=""), record(steps=(plain,))]
    assert names(*none) == names() == []
    assert ip_objects([record(result=None)], "n1") == {"web-1.default.podnet": None}  # not known is not gone


def test_the_newest_sandbox() -> None:
    """While a pod's former sandbox is there, the object is the new one's, in whatever order they are read."""
    old, new = record(boottime_ns=1), record(container_id="new", boottime_ns=2)
    for records in ((old, new), (new, old)):
        assert only(*records)["spec"]["containerID"] == "new"


def test_names() -> None:
    """The default interface has the pod's name; a digest distinguishes two objects with one name, and replaces invalid names."""
    assert names(record(ifname="eth0")) == ["web-1.default"]
    first, second = names(record(), record(ifname="net2"))
    assert first == "web-1.default.podnet"
    assert second.startswith("web-1.default.podnet-")
    assert names(record(), record(container_id="other", pod_name="web-2")) == ["web-1.default.podnet", "web-2.default.podnet"]
    [odd] = names(record(network="Pod_Net"))
    assert odd.startswith("web-1.default.pod-net-")
    [dotted] = names(record(pod_name="web-1.default", pod_namespace="podnet", ifname="eth0"))
    assert dotted.startswith("web-1.default.podnet-")  # and never the object of pod web-1 in namespace default
    [long] = names(record(pod_name="p" * 253))
    assert len(long) == 253


def test_labels_have_an_end() -> None:
    """A node's name may be longer than a label: it is shortened so that long names stay different."""
    assert label("n1") == "n1"
    one, other = label("n" * 99), label("n" * 100)
    assert (len(one), len(other)) == (63, 63)
    assert one != other
