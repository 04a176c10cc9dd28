"""What `why` says of annotations that the attachment does not follow yet."""

from __future__ import annotations

from dataclasses import replace

from tests.lab.node.ports import port_with
from userspace_cni.attachment.facts import Pod
from userspace_cni.attachment.records import Record, claim_container
from userspace_cni.base.settings import Settings
from userspace_cni.node.seen_annotations import see_annotations


def test_whose_annotations_are_followed() -> None:
    """A limit that a pod asks for is pending for an interface of a network; the port of a claim has what the claim says."""
    pod = Pod("blue", "app", "uid-app", annotations={"userspace/bandwidth": '{"net0": {"ingressRate": 8000000}}'})
    record = Record(
        "ready", "net", "c1", "net0", pod_namespace="blue", pod_name="app", pod_uid="uid-app",
        steps=(port_with(bridge="br0", name="c1-net0"),),
    )  # fmt: skip
    seen = see_annotations(pod, record, Settings())
    assert seen
    assert "8000000 bit/s" in str(seen.pending)
    of_claim = replace(record, network="one", container_id=claim_container("uid-one"))
    assert (of_claim.owner, see_annotations(pod, of_claim, Settings())) == ("claim", None)
