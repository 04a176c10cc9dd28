"""Asks the agent on its socket, for commands and probes.

One request per connection, as the shim does it, with one deadline for all of it. It must never wait for an agent that does not
run, and never send a verb: only the runtime sends verbs.
"""

from __future__ import annotations

import json
import re
import socket
from typing import Any, Final

from userspace_cni.agent.listener import peer_of
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.cli import node_load
from userspace_cni.cni import protocol
from userspace_cni.linux.processes import is_stopped

LOOK_S: Final = 3.0
"""Seconds for a question to the agent, on a node that is not busy."""
RECONCILE_S: Final = 60.0
NOT_SERVED: Final = 404
ROUTES_OFF: Final = "routes in pods are off"
"""The agent's word where its setting says so."""
_CHUNK: Final = 1 << 16
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*(?=\r\n|$)", re.IGNORECASE)
_LARGEST: Final = 64 << 20
"""Bytes of an answer: some ten thousand attachments."""
_SHOWN_MAX: Final = 200
"""Bytes of an answer that is no JSON."""


class NoAgent(Unavailable):
    """There is no socket: no agent was started on this node, or it ended normally."""


class DeadAgent(Unavailable):
    """The socket is there, and no process listens on it: the agent was killed, and has not been started again."""


class SlowAgent(Unavailable):
    """The agent lives, and has not answered in time. `busy`: the node is, so that it says nothing about the agent.

    `pid`: its process, 0 where that is not known.
    """

    def __init__(self, message: str, details: str, *, busy: bool, pid: int = 0) -> None:
        super().__init__(message, details)
        self.busy = busy
        self.pid = pid


class RoutesOff(Unavailable):
    """The agent answers, and does not keep routes in pods: its setting says so."""


class AgentClient:
    """The agent at the socket `path`. Every method raises NoAgent, DeadAgent, SlowAgent, or Unavailable for another failure.

    On a busy node each waits longer.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def page(self, target: str, seconds: float) -> str:
        """A page as it is, with its status in a first line unless that is 200; `seconds` are not more on a busy node."""
        reply = self._ask("GET", target, seconds, longer=False)
        return ("" if reply.status == 200 else f"{reply.status}\n") + reply.body.decode("utf-8", "replace")

    def process(self) -> int:
        """The process that holds the socket; 0 where that is not known. It is not asked anything."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(LOOK_S)
                peer.connect(self.path)
                return peer_of(peer)[0]
        except OSError:
            return 0

    def problems(self, probe: str) -> list[str]:
        """The problems that `healthz` or `readyz` reports, one sentence each; none when all is well."""
        return _problems(self._ask("GET", f"/{probe}", LOOK_S))

    def about(self) -> dict[str, Any]:
        """`version` and `commit` of the agent, "" when its answer has none, and its `problems`."""
        reply = self._ask("GET", "/readyz", LOOK_S)
        answer = _decoded(reply.body)
        told = {key: str(answer.get(key, "")) if isinstance(answer, dict) else "" for key in ("version", "commit")}
        return {**told, "problems": _problems(reply)}

    def network(self, *, reconcile: bool = False) -> dict[str, Any]:
        """The node's own network: `specs`, `concerns`, `passages`, `mirrors`, `objects`. `reconcile`: the agent reads and
        tries all first."""
        method, seconds = ("POST", RECONCILE_S) if reconcile else ("GET", LOOK_S)
        return self._described(self._ask(method, "/api/v1/network", seconds))

    def gateways(self) -> dict[str, Any]:
        """The same, after the agent has tried whether the node forwards for its gateways, if its release does that."""
        reply = self._ask("POST", "/api/v1/gateways", RECONCILE_S)
        return self.network() if reply.status == NOT_SERVED else self._described(reply)

    def _described(self, reply: protocol.Reply) -> dict[str, Any]:
        answer = _decoded(reply.body)
        if reply.status != 200 or not isinstance(answer, dict) or not isinstance(answer.get("specs"), list):
            raise Unavailable(
                f"asking the agent at {self.path} of the node's network: it answered {reply.status}", _in_words(reply)
            )
        return answer

    def routes(self, *, look: bool = False) -> dict[str, Any]:
        """The routes of pods: `routes`, `pods`, `problems`, `unreadable`. `look`: after a look at every pod.

        Raises RoutesOff, too.
        """
        method, seconds = ("POST", RECONCILE_S) if look else ("GET", LOOK_S)
        reply = self._ask(method, "/api/v1/routes", seconds)
        answer = _decoded(reply.body)
        if reply.status == 200 and isinstance(answer, dict) and {"routes", "pods", "problems"} <= answer.keys():
            return answer
        what = f"asking the agent at {self.path} for the routes of pods"
        if isinstance(answer, dict) and answer.get("msg") == ROUTES_OFF:
            raise RoutesOff(f"{what}: they are off", "the setting routes, of the agent")
        raise Unavailable(f"{what}: it answered {reply.status}", _in_words(reply))

    def refusals(self) -> list[dict[str, Any]]:
        """The ADDs that it has refused last, the latest last; see `agent.refused_calls`. None of an agent without this page."""
        reply = self._ask("GET", "/api/v1/refusals", LOOK_S)
        answer = _decoded(reply.body)
        if reply.status == NOT_SERVED:
            return []
        if reply.status != 200 or not isinstance(answer, list):
            raise Unavailable(f"asking the agent at {self.path} for refused ADDs: it answered {reply.status}", _in_words(reply))
        return [each for each in answer if isinstance(each, dict)]

    def reconcile(self) -> dict[str, int]:
        """Let the agent reconcile once now; returns how often it took each action."""
        reply = self._ask("POST", "/api/v1/reconcile", RECONCILE_S)
        answer = _decoded(reply.body)
        actions = answer.get("actions") if isinstance(answer, dict) else None
        if reply.status != 200 or not isinstance(actions, dict):
            raise Unavailable(f"asking the agent at {self.path} to reconcile: it answered {reply.status}", _in_words(reply))
        return {str(name): count for name, count in actions.items() if isinstance(count, int)}

    def _ask(self, method: str, target: str, seconds: float, *, longer: bool = True) -> protocol.Reply:
        what = f"asking the agent at {self.path} for {target}"
        seconds = node_load.look().patience(seconds) if longer else seconds
        deadline = Deadline.after(seconds)
        pid = 0
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(seconds)
                peer.connect(self.path)
                pid = peer_of(peer)[0]
                if is_stopped(pid):
                    details = f"let it go on: kill -CONT {pid}"
                    raise SlowAgent(f"{what}: its process {pid} is stopped by a signal", details, busy=False, pid=pid)
                peer.sendall(protocol.request_bytes(target, {}, method=method))
                return protocol.read_reply(_answer_of(peer, deadline))
        except FileNotFoundError as error:
            raise NoAgent(
                f"{what}: no such socket", "no agent runs on this node, or settings socket and run_dir name another place"
            ) from error
        except ConnectionRefusedError as error:
            raise DeadAgent(f"{what}: no process listens there", "the agent died, and has not been started again") from error
        except (TimeoutError, BlockingIOError) as error:
            raise _slow(what, seconds, pid) from error
        except OSError as error:
            raise Unavailable(f"{what}: {error.strerror or error}", "only root and the agent's own user may ask it") from error


def _slow(what: str, seconds: float, pid: int) -> SlowAgent:
    """The error for an agent that took the connection, and has not answered. `pid`: 0 where that is not known."""
    load, who = node_load.look(), f"process {pid}, " if pid else ""
    message = f"{what}: it lives ({who}which holds the socket), and no answer came within {seconds:.0f} s"
    if load.is_busy:
        return SlowAgent(message, f"{load}; ask again", busy=True, pid=pid)
    return SlowAgent(message, "the node is not busy: see the agent's log", busy=False, pid=pid)


def _answer_of(peer: socket.socket, deadline: Deadline) -> bytes:
    """Read the agent's answer. It waits until we close the connection: so the agent knows we have it. Raises TimeoutError."""
    received = bytearray()
    while len(received) <= _LARGEST:
        if _is_whole(received):
            return bytes(received)
        left = deadline.remaining()
        if not left:
            raise TimeoutError
        peer.settimeout(left)
        chunk = peer.recv(_CHUNK)
        if not chunk:
            return bytes(received)
        received += chunk
    raise OSError(f"more than {_LARGEST} bytes came")


def _is_whole(received: bytearray) -> bool:
    head, end, body = received.partition(protocol.HEAD_END)
    length = _LENGTH.search(head)
    return bool(end) and length is not None and len(body) >= int(length[1])


def _problems(reply: protocol.Reply) -> list[str]:
    answer = _decoded(reply.body)
    listed = answer.get("problems") if isinstance(answer, dict) else None
    problems = [str(each) for each in listed] if isinstance(listed, list) else []
    if reply.status != 200 and not problems:
        problems = [f"it answered {reply.status}: {_in_words(reply)}"]
    return problems


def _in_words(reply: protocol.Reply) -> str:
    """What an answer that was not expected says, for people: never its JSON."""
    answer = _decoded(reply.body)
    if isinstance(answer, dict) and isinstance(answer.get("msg"), str):
        return "; ".join(str(answer[key]) for key in ("msg", "details") if answer.get(key))
    if answer is not None:
        return "the answer has another form than expected: is the agent of another release than this command?"
    return reply.body[:_SHOWN_MAX].decode("utf-8", "replace").strip() or "without a body"


def _decoded(body: bytes) -> object:
    try:
        decoded: object = json.loads(body)
    except ValueError:
        return None
    return decoded
