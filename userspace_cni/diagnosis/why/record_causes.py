"""What the record of an attachment says by itself: an ADD or DEL that died in it, another boot. Pure."""

from __future__ import annotations

import shlex
from typing import Final

from userspace_cni.diagnosis.why.attachment_sight import AttachmentSight, Findings, known

_STATES: Final = {
    "pending": "its ADD has not got beyond its addresses",
    "applying": "its ADD was not finished",
    "deleting": "its DEL has begun and was not finished",
}


def judge_record(sight: AttachmentSight) -> Findings:
    """The state of the record, and its boot."""
    record, store = sight.record, known(sight.store)
    for path in store.quarantined if store else ():
        message = "a file of this container could not be read and was put aside"
        remedy = f"look at it (`less {shlex.quote(path)}`), then remove it; recreate the pod where its interface lacks something"
        yield sight.found("file-quarantined", message, remedy, severity="warning")
    if store and (record.container_id, record.ifname) in store.spooled:
        message = "its runtime has asked to detach it (DEL) while no agent answered, and that waits in the spool"
        remedy = "`userspace-cni gc` carries it out, as the next agent does at its start"
        yield sight.found("del-spooled", message, remedy, why="it is no pod's interface any more")
        return
    if record.state != "ready":
        message = f"the attachment is in state {record.state}: {_STATES[record.state]}"
        lives = "a call may be at work on it this moment" if not sight.drifts.get("") else "no call is at work on it"
        remedy = (
            "`userspace-cni gc` removes what is left of it; the runtime's next ADD of the pod makes it again, and "
            f"`kubectl describe pod {record.pod_name or 'POD'}` shows why the last one failed"
        )
        yield sight.found("record-unfinished", f"{message}, and {lives}", remedy, why="the pod has no such interface yet")
    elif sight.boot_id and record.boot_id and record.boot_id != sight.boot_id:
        message = "it was made in an earlier boot of the node, so that its sandbox is gone"
        remedy = "`userspace-cni gc` removes it; the runtime recreates the pod's sandbox"
        yield sight.found("record-of-another-boot", message, remedy)
    else:
        yield sight.well("record", "the record")
