"""What an agent keeps of the ADDs that it refused."""

from __future__ import annotations

import json

from userspace_cni.agent.refused_calls import RefusedCalls


def environ(pod: str, container: str = "c1") -> dict[str, str]:
    args = f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}" if pod else ""
    return {"CNI_ARGS": args, "CNI_CONTAINERID": container, "CNI_IFNAME": "net1"}


def error(text: str) -> bytes:
    return json.dumps({"code": 106, "msg": text, "details": "look"}).encode()


def test_repeats_are_one_until_an_add_succeeds() -> None:
    """The tries of a pod's interface are counted whatever their container, and are forgotten when one succeeds."""
    calls = RefusedCalls()
    calls.note(environ("app", "c1"), error("first"), refused=True)
    calls.note(environ("app", "c2"), error("second"), refused=True)
    calls.note(environ("other"), error("else"), refused=True)
    found = [(each["pod"], each["msg"], each["count"], each["container"], each["code"]) for each in calls.describe()]
    assert found == [("app", "second", 2, "c2", 106), ("other", "else", 1, "c1", 106)]
    calls.note(environ("app", "c3"), b"{}", refused=False)
    assert [each["pod"] for each in calls.describe()] == ["other"]


def test_what_is_kept_is_bounded() -> None:
    """The oldest is forgotten first, a text is cut, and an answer that is no JSON object is kept without its words."""
    calls = RefusedCalls(kept=2)
    for number in range(3):
        calls.note(environ(f"pod{number}"), error("x" * 5000), refused=True)
    assert [each["pod"] for each in calls.describe()] == ["pod1", "pod2"]
    assert all(len(each["msg"]) < 1100 for each in calls.describe())
    for number, output in enumerate((b"[]", b"\xff", b'{"code": "x"}')):
        calls.note(environ("", f"c{number}"), output, refused=True)
    assert [(each["container"], each["code"], each["msg"]) for each in calls.describe()] == [("c1", 0, ""), ("c2", 0, "")]
