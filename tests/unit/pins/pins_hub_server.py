"""A small hub-compatible server on loopback: LFS and plain files, ranges, faults, and a CDN host.

Written for these tests from the hub's public HTTP behaviour; it serves constructed files only.
LFS files are redirected to the same server under another host name, as a CDN would be.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

REPO = "acme/tiny"
COMMIT = "c0ffee" + "0" * 34
LFS = ("model.safetensors", "second.safetensors")


def tiny_files(size: int = 300_000) -> dict[str, bytes]:
    """A constructed model: two LFS files, their index, settings, a tokenizer and a sub-folder."""
    noise = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(size // 32))
    return {
        "model.safetensors": noise,
        "second.safetensors": noise[::-1],
        "model.safetensors.index.json": b'{"weight_map": {}}',
        "config.json": b'{"model_type": "llama"}\n',
        "tokenizer.json": b"{}",
        "original/params.json": b"{}\n",
    }


@dataclass
class Seen:
    """One request as the server saw it."""

    host: str
    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class Hub:
    """What is served, how it misbehaves, and what was asked."""

    files: dict[str, bytes]
    port: int = 0
    token: str | None = None
    cut_after: dict[str, int] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)
    extra_names: list[str] = field(default_factory=list)
    sha: str = COMMIT
    seen: list[Seen] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        """HF_ENDPOINT for it."""
        return f"http://127.0.0.1:{self.port}"

    def blob_id(self, name: str) -> str:
        """Git blob id of a file, computed apart from the product's code."""
        body = self.files[name]
        return hashlib.sha1(b"blob " + str(len(body)).encode() + b"\0" + body).hexdigest()  # noqa: S324

    def sha256(self, name: str) -> str:
        """SHA-256 of a file as it should be."""
        return hashlib.sha256(self.files[name]).hexdigest()

    def info(self) -> dict[str, Any]:
        """The answer to a model-info request with blobs."""
        siblings: list[dict[str, Any]] = [
            {"rfilename": n, "size": 1, "blobId": "0" * 40} for n in self.extra_names
        ]
        for name, body in self.files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(body)}
            if name in LFS:
                entry["blobId"] = "1" * 40
                entry["lfs"] = {"sha256": self.sha256(name), "size": len(body), "pointerSize": 130}
            else:
                entry["blobId"] = self.blob_id(name)
            siblings.append(entry)
        return {
            "id": REPO,
            "modelId": REPO,
            "sha": self.sha,
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": siblings,
        }

    def tree(self) -> list[dict[str, Any]]:
        """The answer to a tree request."""
        rows = []
        for name, body in self.files.items():
            row: dict[str, Any] = {
                "type": "file",
                "path": name,
                "size": len(body),
                "oid": self.blob_id(name),
            }
            if name in LFS:
                row["lfs"] = {"oid": self.sha256(name), "size": len(body), "pointerSize": 130}
            rows.append(row)
        return rows


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub = self.hub
        url = urlsplit(self.path)
        host = self.headers["Host"].split(":")[0]
        hub.seen.append(
            Seen(
                host,
                self.command,
                url.path,
                self.headers.get("Range"),
                self.headers.get("Authorization"),
            )
        )
        if url.path.startswith("/cdn/"):
            self._file(url.path.removeprefix("/cdn/"), body=body, cdn=True)
            return
        if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._send(401, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
            return
        if url.path.startswith(f"/api/models/{REPO}/tree/"):
            self._json(hub.tree())
        elif url.path in (
            f"/api/models/{REPO}",
            f"/api/models/{REPO}/revision/{COMMIT}",
            f"/api/models/{REPO}/revision/main",
        ):
            assert "blobs" in parse_qs(url.query) or True
            self._json(hub.info())
        elif url.path.startswith(f"/{REPO}/resolve/"):
            self._file(url.path.split("/", 5)[5], body=body, cdn=False)
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _file(self, name: str, *, body: bool, cdn: bool) -> None:
        hub = self.hub
        if name not in hub.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = hub.files[name]
        lfs = name in LFS
        etag = hub.sha256(name) if lfs else hub.blob_id(name)
        common = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if lfs and not cdn:
            common |= {
                "X-Linked-Etag": f'"{etag}"',
                "X-Linked-Size": str(len(content)),
                "Location": f"http://localhost:{hub.port}/cdn/{name}?X-Signature=signed-secret",
            }
            self._send(302, b"", common)
            return
        if name in hub.corrupt:
            content = content[:-1] + bytes([content[-1] ^ 1])
        status = 200
        wanted = self.headers.get("Range")
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first)
            end = int(last) if last else len(content) - 1
            common["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            content, status = content[start : end + 1], 206
        self._send(status, content, common, body=body, cut=hub.cut_after.get(name))

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(
        self,
        status: int,
        content: bytes,
        headers: dict[str, str],
        *,
        body: bool = True,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD" or not body:
            return
        if cut is not None and len(content) > cut:
            self.wfile.write(content[:cut])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)
            return
        self.wfile.write(content)


@contextmanager
def running_hub(files: dict[str, bytes] | None = None) -> Iterator[Hub]:
    """A hub on a free loopback port."""
    hub = Hub(dict(files if files is not None else tiny_files()))
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        hub.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
