"""The gRPC server that virt-launcher asks: Info, Callbacks in all three versions, and the domain hook of structured plugins.

virt-launcher ends when `Info` has no answer within a second, so there are always workers for it, however many callbacks wait.
What goes wrong becomes a status with the reason and the remedy in its text, which KubeVirt shows in the VMI's conditions; nothing
that a caller sends ends the server. All that this project knows of gRPC is here.

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

from kubevirt.definition import Call, Definer, Failed
from kubevirt.errors import BadInput, KubevirtError, NotYet, Refused
from kubevirt.log import say
from kubevirt.protocol import info_pb2, plugins_pb2, v1alpha1_pb2, v1alpha2_pb2, v1alpha3_pb2

VERSIONS: Final = ("v1alpha1", "v1alpha2", "v1alpha3")
HOOK_POINTS: Final = ("OnDefineDomain", "Shutdown")
"""PreCloudInitIso is answered, and not asked for."""
CALLBACKS_MAX: Final = 8
"""Definitions under way at once; KubeVirt has one or two."""
GRACE_S: Final = 0.7
"""What calls under way are given to end when the server does."""

_RESERVED: Final = 2
_MESSAGE_MAX: Final = 4 << 20
"""gRPC's own limit, KubeVirt's too. What is too large for us is less, and refused with a reason."""
_DETAILS_MAX: Final = 2000
"""Bytes of a status' text; some are three in its header, and clients drop answers whose headers pass 8 KiB."""
_LIBVIRT: Final = "libvirt"

Behaviour = Callable[[Any, Any], Any]


class Server:
    """Serves at unix sockets: `listen`, `start`, and `stop` at last. `ended` is called after a Shutdown is answered."""

    def __init__(self, definer: Definer, ended: Callable[[], None]) -> None:
        self._definer = definer
        self._ended = ended
        self._seats = threading.BoundedSemaphore(CALLBACKS_MAX)
        self._grpc = grpc.server(
            ThreadPoolExecutor(CALLBACKS_MAX + _RESERVED, "call"),
            handlers=self._services(),
            options=[("grpc.max_receive_message_length", _MESSAGE_MAX), ("grpc.max_send_message_length", _MESSAGE_MAX)],
        )

    def listen(self, path: Path) -> None:
        """Bind a socket at `path`. Raises Refused."""
        try:
            self._grpc.add_insecure_port(f"unix:{quote(str(path))}")
        except RuntimeError as error:
            raise Refused(
                "no-hook-directory", f"binding the socket {path}: {error}", "look at the directory's filesystem"
            ) from error

    def start(self) -> None:
        """Answer from now on."""
        self._grpc.start()

    def stop(self) -> None:
        """Take no more calls, give those under way GRACE_S, then cancel them. A thread that waits for sources may still run."""
        self._grpc.stop(GRACE_S).wait()

    def _services(self) -> list[Any]:
        results = [v1alpha1_pb2.OnDefineDomainResult, v1alpha2_pb2.OnDefineDomainResult, v1alpha3_pb2.OnDefineDomainResult]
        first, second, third = (self._on_define_domain(*pair) for pair in zip(VERSIONS, results, strict=True))
        isos = [_pre_cloud_init_iso(v1alpha2_pb2.PreCloudInitIsoResult), _pre_cloud_init_iso(v1alpha3_pb2.PreCloudInitIsoResult)]
        return [
            _service(info_pb2.DESCRIPTOR, "Info", {"Info": self._info}),
            _service(v1alpha1_pb2.DESCRIPTOR, "Callbacks", {"OnDefineDomain": first}),
            _service(v1alpha2_pb2.DESCRIPTOR, "Callbacks", {"OnDefineDomain": second, "PreCloudInitIso": isos[0]}),
            _service(
                v1alpha3_pb2.DESCRIPTOR,
                "Callbacks",
                {"OnDefineDomain": third, "PreCloudInitIso": isos[1], "Shutdown": self._shutdown},
            ),
            _service(plugins_pb2.DESCRIPTOR, "DomainHookService", {"MutateDomain": self._mutate_domain}),
        ]

    def _info(self, _: info_pb2.InfoParams, context: Any) -> info_pb2.InfoResult:
        del context
        say("info", "asked for our hooks", hook="Info")
        return info_pb2.InfoResult(
            name=f"network-{self._definer.binding}-binding",
            hookPoints=[info_pb2.HookPoint(name=name, priority=0) for name in HOOK_POINTS],
            versions=VERSIONS,
        )

    def _on_define_domain(self, version: str, result: type[Any]) -> Behaviour:
        def on_define_domain(request: Any, context: Any) -> Any:
            call = Call(f"{version}.OnDefineDomain", request.domainXML, request.vmi, context.time_remaining())
            return result(domainXML=self._answer(call, context))

        return on_define_domain

    def _mutate_domain(self, request: plugins_pb2.MutateDomainRequest, context: Any) -> plugins_pb2.MutateDomainResponse:
        if request.domain_type not in ("", _LIBVIRT):
            say("info", "domain of another kind passed on as it is", hook="MutateDomain", kind=request.domain_type)
            return plugins_pb2.MutateDomainResponse(domain=request.domain)
        hook = f"MutateDomain/{request.sidecar_context.invocation_context or 'Boot'}"
        # a plugin's condition decides which VMs it is asked for, so some may not be ours
        call = Call(hook, request.domain, request.vmi, context.time_remaining(), ours=False)
        return plugins_pb2.MutateDomainResponse(domain=self._answer(call, context))

    def _shutdown(self, _: v1alpha3_pb2.ShutdownParams, context: Any) -> v1alpha3_pb2.ShutdownResult:
        say("info", "told to end", hook="v1alpha3.Shutdown")
        context.add_callback(self._ended)
        return v1alpha3_pb2.ShutdownResult()

    def _answer(self, call: Call, context: Any) -> bytes:
        """The new definition, or the end of the call with a status."""
        if not self._seats.acquire(blocking=False):
            text = f"{CALLBACKS_MAX} callbacks are under way already; look in the sidecar's log for what they wait for"
            say("error", text, hook=call.hook)
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        try:
            return self._definer.define(call)
        except Failed as failed:
            code, text = _code(failed.cause), str(failed)
        finally:
            self._seats.release()
        context.abort(code, text.encode()[:_DETAILS_MAX].decode(errors="ignore"))
        raise AssertionError("abort raises")


def _code(cause: Exception) -> Any:
    kinds = {
        BadInput: grpc.StatusCode.INVALID_ARGUMENT,
        NotYet: grpc.StatusCode.UNAVAILABLE,
        KubevirtError: grpc.StatusCode.FAILED_PRECONDITION,
    }
    return next((code for kind, code in kinds.items() if isinstance(cause, kind)), grpc.StatusCode.INTERNAL)


def _pre_cloud_init_iso(result: type[Any]) -> Behaviour:
    """Both fields go back: virt-launcher takes the old one where the new one holds nothing."""

    def pre_cloud_init_iso(request: Any, _: Any) -> Any:
        return result(cloudInitNoCloudSource=request.cloudInitNoCloudSource, cloudInitData=request.cloudInitData)

    return pre_cloud_init_iso


def _service(file: FileDescriptor, name: str, behaviours: Mapping[str, Behaviour]) -> Any:
    """A service out of its descriptor, with one function per method."""
    service = file.services_by_name[name]
    handlers = {
        method.name: grpc.unary_unary_rpc_method_handler(
            behaviours[method.name],
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers)
