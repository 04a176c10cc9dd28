"""gRPC calls to a server at a unix socket of the node: the kubelet, the container runtime.

gRPC is imported by who asks, and not before: it costs a process 100 ms and more. Its exceptions end here.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

from userspace_cni.base.errors import Unavailable, shorten

if TYPE_CHECKING:
    from google.protobuf.message import Message

    A = TypeVar("A", bound=Message)


class RpcUnanswered(Unavailable):
    """A call without an answer that can be used. `status`: gRPC's name for why."""

    def __init__(self, what: str, status: str, said: str, details: str) -> None:
        super().__init__(f"{what}: {status}: {shorten(said)}", details)
        self.status = status


class GrpcConnection:
    """To the server at the socket `path`, as this process sees it; to be used with `with`.

    `answer_max`: bytes of the longest answer that is taken. `details`: the hint of its errors.
    """

    def __init__(self, path: str, answer_max: int, details: str) -> None:
        import grpc

        options = (("grpc.max_receive_message_length", answer_max), ("grpc.enable_http_proxy", 0))
        self._channel: Any = grpc.insecure_channel(f"unix:{quote(path)}", options=options)
        self._details = details

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._channel.close()

    def ask(self, what: str, method: str, request: Message, answer: type[A], seconds: float) -> A:
        """The answer to a request, which must come within `seconds`. Any number of threads may ask at once.

        `what`: how an error names the call. `method`: `/package.Service/Method`. Raises Unanswered.
        """
        import grpc

        call = self._channel.unary_unary(
            method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        try:
            got: A = call(request, timeout=seconds)
        except grpc.RpcError as error:
            raise RpcUnanswered(what, error.code().name, error.details() or "", self._details) from None
        return got
