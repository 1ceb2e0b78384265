"""Constructed image documents, layouts, archives and tools for the pin tests."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
HOST = "registry.example"
NAME = "acme/engine"


def sha(body: bytes) -> str:
    """A digest as registries write it."""
    return "sha256:" + hashlib.sha256(body).hexdigest()


@dataclass
class Parts:
    """One constructed image: every document and blob by digest."""

    layer_tar: bytes
    layer: bytes
    settings: bytes
    manifest: bytes
    index: bytes

    @property
    def blobs(self) -> dict[str, bytes]:
        """Everything by digest."""
        parts = (self.layer, self.settings, self.manifest, self.index)
        return {sha(body): body for body in parts}

    @property
    def digest(self) -> str:
        """The manifest digest."""
        return sha(self.manifest)

    @property
    def index_digest(self) -> str:
        """The index digest."""
        return sha(self.index)


def make_parts(text: str = "hello") -> Parts:
    """A tiny image: one layer with one file, labels, and an index of two platforms."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("hello.txt")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
    layer_tar = buffer.getvalue()
    layer = gzip.compress(layer_tar, mtime=0)
    settings = dump(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": {"com.nvidia.build.id": "constructed"}},
            "rootfs": {"type": "layers", "diff_ids": [sha(layer_tar)]},
        }
    )
    manifest = dump(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {"digest": sha(settings), "size": len(settings), "mediaType": "x"},
            "layers": [{"digest": sha(layer), "size": len(layer), "mediaType": "layer"}],
        }
    )
    other = dump({"schemaVersion": 2, "config": {}, "layers": [], "note": "arm64"})
    index = dump(
        {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": [
                entry(sha(other), "arm64"),
                entry(sha(manifest), "amd64"),
                {"digest": sha(b"attestation"), "platform": {"os": "unknown"}},
            ],
        }
    )
    return Parts(layer_tar, layer, settings, manifest, index)


def entry(digest: str, architecture: str) -> dict[str, Any]:
    """One line of an index."""
    platform = {"os": "linux", "architecture": architecture}
    return {"mediaType": OCI_MANIFEST, "digest": digest, "size": 1, "platform": platform}


def dump(value: Any) -> bytes:
    """JSON bytes."""
    return json.dumps(value).encode()


class FakeRegistry:
    """A registry's HTTP API in memory, as an httpx transport."""

    def __init__(self, parts: Parts, tags: dict[str, bytes] | None = None) -> None:
        self.parts = parts
        self.tags = tags if tags is not None else {"v1": parts.index}
        self.requests: list[httpx.Request] = []
        self.alter: dict[str, bytes] = {}

    @property
    def transport(self) -> httpx.MockTransport:
        """The transport to hand to a client."""
        return httpx.MockTransport(self.answer)

    def answer(self, request: httpx.Request) -> httpx.Response:
        """One answer."""
        self.requests.append(request)
        _, _, kind, wanted = request.url.path.rsplit("/", 3)
        body = self.tags.get(wanted) or self.parts.blobs.get(wanted)
        if body is None:
            return httpx.Response(404)
        headers = {"docker-content-digest": sha(body)} if kind == "manifests" else {}
        return httpx.Response(200, content=self.alter.get(wanted, body), headers=headers)


def write_layout(folder: Path, parts: Parts, *, through_index: bool = True) -> Path:
    """An OCI layout on disk."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for digest, body in parts.blobs.items():
        (blobs / digest.removeprefix("sha256:")).write_bytes(body)
    top = parts.index_digest if through_index else parts.digest
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}', encoding="utf-8")
    (folder / "index.json").write_bytes(
        dump({"schemaVersion": 2, "manifests": [{"digest": top, "size": 1}]})
    )
    return folder


def write_docker_archive(path: Path, parts: Parts, layer_tar: bytes | None = None) -> Path:
    """A `docker save` archive."""
    listed = [{"Config": "config.json", "Layers": ["0/layer.tar"], "RepoTags": ["x:1"]}]
    members = {
        "manifest.json": dump(listed),
        "config.json": parts.settings,
        "0/layer.tar": layer_tar if layer_tar is not None else parts.layer_tar,
    }
    with tarfile.open(path, "w") as tar:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return path


FAKE_TOOL = """#!/usr/bin/env python3
# A stand-in for Apptainer in unit tests: it records its argv and writes a file.
import json, os, sys, time
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}) + "\\n")
if sys.argv[1:] == ["--version"]:
    print("NAME version 1.4.5")
elif sys.argv[1] in ("pull", "build"):
    target = [a for a in sys.argv[2:] if not a.startswith("-")][0]
    with open(target, "wb") as out:
        out.write(b"#!/usr/bin/env run-singularity\\0\\0SIF_MAGIC" + os.urandom(8))
    time.sleep(float(os.environ.get("FAKE_SLEEP", "0")))
    if os.environ.get("FAKE_FAULT"):
        print("FATAL: " + os.environ["FAKE_FAULT"], file=sys.stderr)
        sys.exit(255)
elif sys.argv[1] == "exec":
    os.execvp("python3", ["python3", *sys.argv[sys.argv.index("python3") + 1:]])
"""


def fake_tool(folder: Path, name: str = "apptainer") -> Path:
    """An executable that acts like the container tool."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(FAKE_TOOL.replace("NAME", name), encoding="utf-8")
    path.chmod(0o755)
    return path


def tool_calls(log: Path) -> list[dict[str, Any]]:
    """What a fake tool was called with, versions left out."""
    if not log.exists():
        return []
    calls = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [call for call in calls if call["argv"] != ["--version"]]


def engine_values(parts: Parts, **image: Any) -> dict[str, Any]:
    """The JSON of a pins spec for a constructed image."""
    return {
        "backend": "measured",
        "engine": "trtllm-1.2.1",
        "adapter": "trtllm",
        "version": "1.2.1",
        "image": {
            "uri": f"docker://{HOST}/{NAME}:v1",
            "digest": parts.digest,
            "index_digest": None,
            "sif_sha256": None,
            "staged": None,
            **image,
        },
        "command": [],
    }


def touch_same_size(path: Path) -> None:
    """Alter one byte of a file and put its times back."""
    before = path.stat()
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
