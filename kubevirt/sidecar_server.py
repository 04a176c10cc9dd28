"""The gRPC server that virt-launcher asks: Info, Callbacks in all three versions, and structured plugins' hook for a definition.

virt-launcher ends when `Info` has no answer within a second. So Info has a thread of its own, and is answered before its request,
which is empty, has come: neither callbacks that wait nor calls that never come whole can take that thread.

A definition's request is read when it has a seat, so that memory holds few of them, and has to come whole within READ_S. What
remains: calls that are never sent whole keep the seats from others, each for that long, and with many of them a definition is
refused or late; and each connection and each waiting call takes some memory. Only the containers of the VM's pod can connect.

An error becomes a status with the reason and the remedy in its text, which KubeVirt shows in the VMI's conditions. No request may
end the server. Only this module uses gRPC.

Sources: KubeVirt's pkg/hooks/manager.go, pkg/virt-launcher/virtwrap/plugins (sidecar hooks), pkg/util/net/grpc.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import grpc
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message_factory import GetMessageClass

from kubevirt.definition import Call, Definer, DefinitionFailed
from kubevirt.protocol import info_pb2, plugins_pb2, v1alpha1_pb2, v1alpha2_pb2, v1alpha3_pb2
from kubevirt.sidecar_errors import BadInput, DefinitionRefused, KubevirtError
from kubevirt.sidecar_log import say

VERSIONS: Final = ("v1alpha1", "v1alpha2", "v1alpha3")
HOOK_POINTS: Final = ("OnDefineDomain", "Shutdown")
"""PreCloudInitIso is answered, and not asked for."""
CALLBACKS_MAX: Final = 2
"""Definitions under way at once, whose texts are in memory; KubeVirt has one, or two. More wait."""
THREADS_MAX: Final = 128
"""With those that wait for a seat. A thread is made when it is needed first."""
READ_S: Final = 5.0
"""How long a request may take to come, over a socket of the same machine."""
GRACE_S: Final = 0.7
"""What calls under way are given to end when the server does."""

_MESSAGE_MAX: Final = 1 << 20
"""A definition and a VMI of the most that is read, and some more: gRPC refuses the rest before it is in memory."""
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MESSAGE_MAX),
    ("grpc.max_send_message_length", _MESSAGE_MAX),
    # a connection's buffers do not grow with what it brings
    ("grpc.http2.bdp_probe", 0),
    ("grpc.experimental.tcp_max_read_chunk_size", 64 << 10),
)
_DETAILS_MAX: Final = 2000
"""Bytes of a status' text; some are three in its header, and clients drop answers whose headers pass 8 KiB."""
_LIBVIRT: Final = "libvirt"
_SEAT_SHARE: Final = 0.5
"""Of the time that the caller leaves, for waiting for a seat."""
_SEAT_S: Final = 30.0
"""The same for a caller without a deadline."""

Behaviour = Callable[[Any, Any], Any]


class SidecarServer:
    """Serves at unix sockets: `listen`, `start`, and `stop` at last. `ended` is called after a Shutdown is answered."""

    def __init__(self, definer: Definer, ended: Callable[[], None]) -> None:
        self._definer = definer
        self._ended = ended
        self._seats = threading.BoundedSemaphore(CALLBACKS_MAX)
        self._grpc = grpc.server(
            ThreadPoolExecutor(THREADS_MAX, "call"),
            handlers=self._services(),
            options=_OPTIONS,
        )

    def listen(self, path: Path) -> None:
        """Bind a socket at `path`. Raises Refused."""
        try:
            self._grpc.add_insecure_port(f"unix:{quote(str(path))}")
        except RuntimeError as error:
            raise DefinitionRefused(
                "no-hook-directory", f"binding the socket {path}: {error}", "look at the directory's filesystem"
            ) from error

    def start(self) -> None:
        self._grpc.start()

    def stop(self) -> None:
        """Take no more calls, give those under way GRACE_S, then cancel them. A thread that waits for sources may still run."""
        self._grpc.stop(GRACE_S).wait()

    def _services(self) -> list[Any]:
        results = [v1alpha1_pb2.OnDefineDomainResult, v1alpha2_pb2.OnDefineDomainResult, v1alpha3_pb2.OnDefineDomainResult]
        first, second, third = (self._on_define_domain(*pair) for pair in zip(VERSIONS, results, strict=True))
        former = self._plugin_hook("MutateDomain", plugins_pb2.MutateDomainResponse)
        current = self._plugin_hook("GuestDefinition", plugins_pb2.GuestDefinitionResponse)
        isos = [_pre_cloud_init_iso(v1alpha2_pb2.PreCloudInitIsoResult), _pre_cloud_init_iso(v1alpha3_pb2.PreCloudInitIsoResult)]
        return [
            _service(info_pb2.DESCRIPTOR, "Info", {"Info": self._info()}),
            _service(v1alpha1_pb2.DESCRIPTOR, "Callbacks", {"OnDefineDomain": first}),
            _service(v1alpha2_pb2.DESCRIPTOR, "Callbacks", {"OnDefineDomain": second, "PreCloudInitIso": isos[0]}),
            _service(
                v1alpha3_pb2.DESCRIPTOR,
                "Callbacks",
                {"OnDefineDomain": third, "PreCloudInitIso": isos[1], "Shutdown": self._shutdown},
            ),
            _service(plugins_pb2.DESCRIPTOR, "DomainHookService", {"MutateDomain": former}),
            _service(plugins_pb2.DESCRIPTOR, "LauncherHookService", {"GuestDefinition": current}),
        ]

    def _info(self) -> Behaviour:
        def info(_requests: Any, _context: Any) -> info_pb2.InfoResult:
            say("info", "asked for our hooks", hook="Info")
            return info_pb2.InfoResult(
                name=f"network-{self._definer.binding}-binding",
                hookPoints=[info_pb2.HookPoint(name=name, priority=0) for name in HOOK_POINTS],
                versions=VERSIONS,
            )

        # by this name gRPC finds the threads of a method that has its own
        info.experimental_thread_pool = ThreadPoolExecutor(1, "info")  # type: ignore[attr-defined]
        return info

    def _on_define_domain(self, version: str, result: type[Any]) -> Behaviour:
        def call(request: Any, seconds: float | None) -> Call:
            return Call(f"{version}.OnDefineDomain", request.domainXML, request.vmi, seconds)

        def on_define_domain(requests: Any, context: Any) -> Any:
            return result(domainXML=self._answer(requests, context, call))

        return on_define_domain

    def _plugin_hook(self, method: str, result: type[Any]) -> Behaviour:
        """The hook of structured plugins: the former and the current service differ in names alone."""

        def call(request: Any, seconds: float | None) -> Call | bytes:
            if request.domain_type not in ("", _LIBVIRT):
                say("info", "domain of another kind passed on as it is", hook=method, kind=request.domain_type)
                return bytes(request.domain)
            hook = f"{method}/{request.sidecar_context.invocation_context or 'Boot'}"
            # a plugin's condition decides which VMs it is asked for, so some may not be ours
            return Call(hook, request.domain, request.vmi, seconds, ours=False)

        def plugin_hook(requests: Any, context: Any) -> Any:
            return result(domain=self._answer(requests, context, call))

        return plugin_hook

    def _shutdown(self, requests: Any, context: Any) -> v1alpha3_pb2.ShutdownResult:
        _whole(requests, context)
        say("info", "told to end", hook="v1alpha3.Shutdown")
        context.add_callback(self._ended)
        return v1alpha3_pb2.ShutdownResult()

    def _answer(self, requests: Any, context: Any, read: Callable[[Any, float | None], Call | bytes]) -> bytes:
        """The new definition, or the end of the call with a status. `read` makes a call of a request, or its answer."""
        left = context.time_remaining()
        if not self._seats.acquire(timeout=_SEAT_S if left is None else min(_SEAT_S, left * _SEAT_SHARE)):
            text = f"{CALLBACKS_MAX} callbacks are under way already; look in the sidecar's log for what they wait for"
            say("error", text)
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        try:
            # the request itself is let go: a call has its texts
            call = read(_whole(requests, context), context.time_remaining())
            return call if isinstance(call, bytes) else self._definer.define(call)
        except DefinitionFailed as failed:
            code, text = _code(failed.cause), str(failed)
        finally:
            self._seats.release()
        context.abort(code, text.encode()[:_DETAILS_MAX].decode(errors="ignore"))
        raise AssertionError("abort raises")


def _whole(requests: Any, context: Any) -> Any:
    """The request, as soon as all of it is there. Ends the call when that takes longer than READ_S."""
    late = threading.Timer(READ_S, context.cancel)
    late.daemon = True
    late.start()
    try:
        return next(requests)
    except StopIteration:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        raise AssertionError("abort raises") from None
    finally:
        late.cancel()


def _code(cause: Exception) -> Any:
    kinds = {
        BadInput: grpc.StatusCode.INVALID_ARGUMENT,
        KubevirtError: grpc.StatusCode.FAILED_PRECONDITION,
    }
    return next((code for kind, code in kinds.items() if isinstance(cause, kind)), grpc.StatusCode.INTERNAL)


def _pre_cloud_init_iso(result: type[Any]) -> Behaviour:
    """Both fields go back: virt-launcher takes the old one where the new one holds nothing."""

    def pre_cloud_init_iso(requests: Any, context: Any) -> Any:
        request = _whole(requests, context)
        return result(cloudInitNoCloudSource=request.cloudInitNoCloudSource, cloudInitData=request.cloudInitData)

    return pre_cloud_init_iso


def _service(file: FileDescriptor, name: str, behaviours: Mapping[str, Behaviour]) -> Any:
    """A service out of its descriptor, with one function per method.

    For gRPC each has a stream of requests, of which it takes the first: such a function is called before any of it is there.
    """
    service = file.services_by_name[name]
    handlers = {
        method.name: grpc.stream_unary_rpc_method_handler(
            behaviours[method.name],
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers)
