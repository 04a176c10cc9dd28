"""A call of the plugin within the test's process, on a node of the test's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from userspace_cni.attachment import verbs
from userspace_cni.attachment.node import Node
from userspace_cni.cni.call import CniAnswer, answer
from userspace_cni.cni.request import Called


def call_plugin(
    environ: Mapping[str, str], read_stdin: Callable[[], bytes], node: Callable[[], Node], called: Called | None = None
) -> CniAnswer:
    """Answer the call as the agent and the plugin as a process do; `node` is called when the input is valid."""
    return answer(environ, read_stdin, lambda request: verbs.serve(request, node(), called))
