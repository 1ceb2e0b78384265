"""A real image registry on loopback, tiny multi-arch images, and a proxy that cuts connections.

Used by the pin tests. Needs docker-registry, skopeo, umoci and busybox-static of Debian.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
PROGRAMS = ("docker-registry", "skopeo", "umoci", "busybox")


def missing_programs() -> list[str]:
    """Programs of this module that the machine lacks."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Pushed:
    """What a registry was given: digests, and the blobs of the amd64 image."""

    name: str
    index_digest: str
    manifest_digest: str
    other_digest: str
    config_digest: str
    layer_digests: list[str]


class Registry:
    """A running docker-registry whose storage can be tampered with."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.host = f"127.0.0.1:{port}"

    def blob(self, digest: str) -> Path:
        """The file that holds a blob."""
        digits = digest.removeprefix("sha256:")
        blobs = self.folder / "data" / "docker/registry/v2/blobs/sha256"
        return blobs / digits[:2] / digits / "data"

    def manifest(self, name: str, reference: str) -> bytes:
        """A manifest or index as stored."""
        response = httpx.get(
            f"http://{self.host}/v2/{name}/manifests/{reference}",
            headers={"Accept": f"{INDEX}, {MANIFEST}"},
            trust_env=False,
        )
        response.raise_for_status()
        return response.content

    def put(self, name: str, reference: str, body: bytes, media_type: str) -> None:
        """Store a manifest or index under a tag or digest."""
        response = httpx.put(
            f"http://{self.host}/v2/{name}/manifests/{reference}",
            content=body,
            headers={"Content-Type": media_type},
            trust_env=False,
        )
        response.raise_for_status()

    def push(self, layout: Path, name: str, tag: str) -> Pushed:
        """Push an image as amd64, the same one relabelled as arm64, and an index of the two."""
        digests = {}
        for arch in ("amd64", "arm64"):
            target = f"docker://{self.host}/{name}:{tag}-{arch}"
            run(
                *("skopeo", "copy", "--insecure-policy", "--dest-tls-verify=false"),
                *("--format", "oci", f"oci:{layout}:{arch}", target),
            )
            digests[arch] = sha256(self.manifest(name, f"{tag}-{arch}"))
        entries = [
            {
                "mediaType": MANIFEST,
                "digest": digest,
                "size": len(self.manifest(name, digest)),
                "platform": {"os": "linux", "architecture": arch},
            }
            for arch, digest in sorted(digests.items(), reverse=True)
        ]
        index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
        self.put(name, tag, index, INDEX)
        manifest = json.loads(self.manifest(name, digests["amd64"]))
        return Pushed(
            name=name,
            index_digest=sha256(index),
            manifest_digest=digests["amd64"],
            other_digest=digests["arm64"],
            config_digest=manifest["config"]["digest"],
            layer_digests=[layer["digest"] for layer in manifest["layers"]],
        )


@contextmanager
def running_registry(folder: Path, htpasswd: str | None = None) -> Iterator[Registry]:
    """A docker-registry on a free loopback port, ended at the end of the block."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "registry.yml"
    auth = ""
    if htpasswd is not None:
        (folder / "htpasswd").write_text(htpasswd, encoding="utf-8")
        auth = f"auth: {{htpasswd: {{realm: test, path: {folder / 'htpasswd'}}}}}\n"
    settings.write_text(
        "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n{auth}",
        encoding="utf-8",
    )
    with (
        (folder / "registry.log").open("wb") as log,
        subprocess.Popen(
            ["docker-registry", "serve", str(settings)], stdout=log, stderr=log
        ) as process,
    ):
        try:
            _wait(port)
            yield Registry(folder, port)
        finally:
            process.terminate()


def build_image(folder: Path, files: dict[str, bytes], *, python: bool, ballast: int = 0) -> Path:
    """An OCI layout with tags amd64 and arm64: busybox, `files`, and this host's Python if asked.

    The Python is a subset of the host's (interpreter, C libraries, pure library), small enough for
    tests. `ballast` adds that many bytes that do not compress. Nothing here is a real engine.
    """
    layout = folder / "layout"
    bundle = folder / "bundle"
    run("umoci", "init", "--layout", str(layout))
    run("umoci", "new", "--image", f"{layout}:amd64")
    run("umoci", "unpack", "--rootless", "--image", f"{layout}:amd64", str(bundle))
    root = bundle / "rootfs"
    _busybox(root)
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if content.startswith(b"#!") else 0o644)
    if python:
        _python(root)
    if ballast:
        (root / "ballast").write_bytes(_noise(ballast))
    run("umoci", "repack", "--image", f"{layout}:amd64", str(bundle))
    labels = {"com.nvidia.build.id": "constructed-for-tests", "maintainer": "kvstudy tests"}
    for arch in ("arm64", "amd64"):
        run(
            *("umoci", "config", "--image", f"{layout}:amd64", "--tag", arch),
            *("--architecture", arch, "--os", "linux"),
            *(part for k, v in labels.items() for part in ("--config.label", f"{k}={v}")),
            *("--config.env", "PATH=/usr/bin:/bin"),
        )
    return layout


def _busybox(root: Path) -> None:
    for name in ("bin", "etc", "tmp", "usr/bin", "dev", "proc", "sys", "root", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, root / "bin" / "busybox")
    for applet in ("sh", "cat", "env", "id", "ls", "echo", "test", "sleep", "mkdir"):
        link = root / "bin" / applet
        if not link.exists():
            link.symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n", encoding="utf-8")
    (root / "etc" / "group").write_text("root:x:0:\n", encoding="utf-8")
    release = 'PRETTY_NAME="Constructed test image"\nID=constructed\n'
    (root / "etc" / "os-release").write_text(release, encoding="utf-8")


HOST_PYTHON = Path("/usr/bin/python3")


def _python(root: Path) -> None:
    """The host's own Python with its library, tests and bytecode left out."""
    program = HOST_PYTHON.resolve()
    library = Path("/usr/lib") / program.name
    needed = [program, *library.glob("lib-dynload/*.so")]
    shutil.copy(program, root / "usr/bin" / "python3")
    target = root / library.relative_to("/")
    skip = shutil.ignore_patterns(
        "__pycache__", "test", "tests", "idlelib", "tkinter", "ensurepip", "config-*", "lib2to3"
    )
    shutil.copytree(library, target, ignore=skip, ignore_dangling_symlinks=True, dirs_exist_ok=True)
    for path in {lib for file in needed for lib in _libraries(file)}:
        inside = root / path.relative_to("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        if not inside.exists():
            shutil.copy(path, inside)


def _libraries(file: Path) -> list[Path]:
    found = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False)
    words = found.stdout.split()
    return [Path(word) for word in words if word.startswith("/")]


def _noise(size: int) -> bytes:
    out = bytearray()
    block = b"kvstudy"
    while len(out) < size:
        block = hashlib.sha256(block).digest()
        out += block
    return bytes(out[:size])


class _Cutter(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, upstream: int) -> None:
        super().__init__(("127.0.0.1", 0), _Relay)
        self.upstream = upstream
        self.budget: int | None = None
        self.cuts = 0
        self.connections = 0


class _Relay(socketserver.BaseRequestHandler):
    server: _Cutter

    def handle(self) -> None:
        self.server.connections += 1
        with socket.create_connection(("127.0.0.1", self.server.upstream)) as upstream:
            up = threading.Thread(target=self._pump, args=(self.request, upstream, False))
            up.start()
            self._pump(upstream, self.request, True)
            up.join(5)

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(65536):
                if counted and self.server.budget is not None:
                    if len(data) >= self.server.budget:
                        sink.sendall(data[: self.server.budget])
                        self.server.cuts += 1
                        break
                    self.server.budget -= len(data)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


@contextmanager
def cutting_proxy(upstream_port: int) -> Iterator[_Cutter]:
    """A TCP proxy that cuts every connection once `budget` bytes came back in all; None: never."""
    with _Cutter(upstream_port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def sha256(body: bytes) -> str:
    """A digest as registries write it."""
    return "sha256:" + hashlib.sha256(body).hexdigest()


def run(*argv: str) -> str:
    """Run a program to its end; its stdout."""
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{argv[0]}: {result.stderr[-2000:]}"
    return result.stdout


def _wait(port: int) -> None:
    for _ in range(200):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the registry does not answer")
