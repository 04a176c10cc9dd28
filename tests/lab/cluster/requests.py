"""Requests to the cluster's API server that kubectl does not send."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from tests.lab.cluster.control import ADMIN, API, Control

Call = tuple[str, str, str, Any]
"""Method, path, type of the body, and the body, None for none."""

_SEND: Final = """\
import json, ssl, sys, urllib.error, urllib.request
told = json.load(sys.stdin)
context = ssl.create_default_context(cafile=told["ca"])
answers = []
for method, path, kind, body in told["calls"]:
    headers = {"Authorization": "Bearer " + told["token"], "Content-Type": kind, "User-Agent": "tester/1"}
    sent = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(told["server"] + path, sent, headers, method=method)
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            answers.append([answer.status, json.load(answer)])
    except urllib.error.HTTPError as error:
        text = error.read()
        answers.append([error.code, json.loads(text) if text.startswith(b"{") else {}])
json.dump(answers, sys.stdout)
"""


def send(control: Control, calls: Sequence[Call]) -> list[tuple[int, dict[str, Any]]]:
    """Send the administrator's requests one after the other.

    The status code and body of each answer, {} for a body that is no JSON.
    """
    config = json.loads(control.kubeconfig(ADMIN).read_text())
    token = config["users"][0]["user"]["token"]
    told = {"server": f"https://{API}", "ca": str(control.directory / "ca.crt"), "token": token, "calls": calls}
    argv = ["nsenter", f"--net=/proc/{control.machine.pid}/ns/net", sys.executable, "-c", _SEND]
    done = subprocess.run(argv, input=json.dumps(told), capture_output=True, text=True, timeout=120, check=True)
    return [(status, body) for status, body in json.loads(done.stdout)]
