"""What Kubernetes' cases take for the Internet: it answers each request with 200. A program with the argument PORT, on loopback.

Before each case of its group "Networking" the program itself, not a pod, asks for http://google.com, and goes on if that answers.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

HOST: Final = "127.0.0.1"
PORT: Final = 8118


class Answers(BaseHTTPRequestHandler):
    """A request's answer."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


if __name__ == "__main__":
    ThreadingHTTPServer((HOST, int(sys.argv[1])), Answers).serve_forever()
