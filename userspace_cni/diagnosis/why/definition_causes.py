"""What of the API's objects can be the cause: a network definition that was changed or deleted since the pod's ADD. Pure."""

from __future__ import annotations

from typing import Final

from userspace_cni.diagnosis.why.attachment_sight import AttachmentSight, Findings, known

_ANEW: Final = "the pod has what it said at its ADD; make the pod anew to have what it says now, or change the definition back"


def judge_definition(sight: AttachmentSight) -> Findings:
    """The network definition, as it is now."""
    seen = known(sight.definition)
    if seen is None:
        return
    show = f"`kubectl get network-attachment-definitions -n {' '.join(seen.name.partition('/')[::2])} -o yaml`"
    if not seen.is_there:
        message = f"the network definition {seen.name}, by which the pod asked for this interface, was deleted"
        remedy = f"create it again before the pod is made anew: until then no new pod gets {sight.record.network}"
        yield sight.found(
            "definition-deleted", message, remedy, "this attachment goes on; a new sandbox of the pod fails", "warning"
        )
    elif not seen.is_ours:
        message = f"the network definition {seen.name} is no longer one of network {sight.record.network} of this plugin"
        yield sight.found("definition-replaced", message, f"{_ANEW}: {show}", severity="warning")
    elif seen.refused:
        message = f"the network definition {seen.name} has changed since the pod's ADD, and is refused now: {seen.refused}"
        remedy = f"correct it ({show}); `userspace-cni lint` checks files"
        yield sight.found("definition-refused", message, remedy, "a new sandbox of the pod fails", "warning")
    elif seen.changed:
        said = "; ".join(f"{key} is {now} there, and {then} at the port" for key, (now, then) in seen.changed.items())
        message = f"the network definition {seen.name} has changed since the pod's ADD: {said}"
        yield sight.found(
            "definition-changed", message, f"{_ANEW}: {show}", "pods made since then may be in another network", "warning"
        )
    else:
        yield sight.well("definition", f"network definition {seen.name}")
