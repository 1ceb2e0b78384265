"""A server for lifecycle tests, standard library only: serve_fake.py PORT [key=value]….

version=V, model=M      what it reports
never_ready=1           /health answers 503
not_yet=N               the first N completions answer 503
exit=CODE               prints some lines and ends with CODE at once
die_at=N                kills itself when completion N comes
ignore_term=1           SIGTERM changes nothing
children=1              starts a child, a child in a session of its own, and a double-forked one,
                        all deaf to SIGTERM; writes their pids to `pids`
say=TEXT                a line for the log
key=K                   /v1 wants the bearer key that stands in environment variable K
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

DEAF = (
    "import signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    "time.sleep(600)\n"
)


def start_children() -> None:
    deaf = [sys.executable, "-I", "-S", "-c", DEAF]
    pids = [subprocess.Popen(deaf).pid, subprocess.Popen(deaf, start_new_session=True).pid]
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.setsid()
        inner = subprocess.Popen(deaf)
        os.write(write_end, f"{inner.pid}\n".encode())
        os._exit(0)
    os.wait()
    pids.append(int(os.read(read_end, 100)))
    Path("pids.tmp").write_text(json.dumps(pids))
    Path("pids.tmp").rename("pids")


class Handler(BaseHTTPRequestHandler):
    """The routes that readiness looks at."""

    options: ClassVar[dict[str, str]] = {}
    completions = 0

    def answer(self, status: int, document: object) -> None:
        """Send JSON."""
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """Health, version, models."""
        if self.path == "/health":
            self.answer(503 if "never_ready" in self.options else 200, {})
        elif self.path == "/version":
            self.answer(200, {"version": self.options.get("version", "1.0.0")})
        elif self.path == "/v1/models":
            self.answer(200, {"data": [{"id": self.options.get("model", "tiny")}]})
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        """Completions."""
        self.rfile.read(int(self.headers["Content-Length"]))
        Handler.completions += 1
        key = os.environ.get(self.options.get("key", ""))
        if key and self.headers["Authorization"] != f"Bearer {key}":
            self.answer(401, {})
        elif Handler.completions <= int(self.options.get("not_yet", 0)):
            self.answer(503, {"message": "loading"})
        elif str(Handler.completions) == self.options.get("die_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            self.answer(200, {"choices": [{"index": 0, "text": "x"}]})

    def log_message(self, *_: object) -> None:
        """Stay silent."""


def main() -> None:
    port = int(sys.argv[1])
    options = dict(word.split("=", 1) for word in sys.argv[2:])
    Handler.options = options
    for line in options.get("say", "").split("|"):
        sys.stderr.write(f"{line}\n")
    if "exit" in options:
        sys.exit(int(options["exit"]))
    if "ignore_term" in options:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "children" in options:
        start_children()
    time.sleep(float(options.get("slow_s", 0)))
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
