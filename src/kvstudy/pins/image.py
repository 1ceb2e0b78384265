"""The image rule: registry digest, pulled manifest, image file; each link checked.

For a fresh pull the manifest digest is the gate: the tool pulls by it and checks every layer on
the way. The file's hash is recorded, because SIF bytes differ from pull to pull, and protects the
file from then on. A staged SIF is gated by the pinned `sif_sha256`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from kvstudy.base.digest import sha256_file
from kvstudy.base.errors import PinError
from kvstudy.pins import layers, local_image
from kvstudy.pins.at_rest import progress_of, recheck, say, stamp
from kvstudy.pins.manifest import settings_facts
from kvstudy.pins.reference import parse_reference, plain_http
from kvstudy.pins.resolve import Resolved, compare, resolve
from kvstudy.pins.spec import Document, EngineSpec, emulated
from kvstudy.pins.store import ImageStore
from kvstudy.pins.tool import Tool, find_tool, run_tool, tool_environment
from kvstudy.study.model import Image

IMAGE_LOCK_VERSION = 1
_RETRY = "nothing of it is used; run again"


def verify_image(spec: EngineSpec, cache: Path, *, full: bool = False) -> Document:
    """Verify one engine's image and make it ready; returns what its lock records.

    `full` hashes a cached file again instead of looking at its size, mtime and inode. Raises
    PinError for anything that is not exactly what the pin says.
    """
    if spec.emulated:
        return emulated(engine=spec.engine)
    if spec.image is None:
        return _host_command(spec)
    image = spec.pinned_image()
    path = local_image.local_path(image)
    if path is not None and local_image.kind_of(path) == "sif":
        return _document(spec, image, _staged_sif(spec, image, path))
    store = ImageStore(cache)
    record = _cached(image, store, full=full)
    if record is None:
        with store.locked(image.digest):
            record = _cached(image, store, full=full)
            if record is None and path is not None:
                record = _convert(spec, image, path, store)
            elif record is None:
                record = _pull(spec, image, store)
    return _document(spec, image, record)


def _cached(image: Image, store: ImageStore, *, full: bool) -> Document | None:
    """A complete image of the cache, looked at again.

    Needs no lock, no tool and no right to write: the record is written last, and whole.
    """
    record = store.record(image.digest)
    if record is not None:
        record["place"] = recheck(record["place"], f"image {image.digest}", full=full)
    return record


def _document(spec: EngineSpec, image: Image, record: Document) -> Document:
    return {
        "image_lock_version": IMAGE_LOCK_VERSION,
        "backend": spec.backend,
        "verified": True,
        "kind": "image",
        "engine": spec.engine,
        "adapter": spec.adapter,
        "version": spec.version,
        "uri": image.uri,
        "pinned": {
            "digest": image.digest,
            "index_digest": image.index_digest,
            "sif_sha256": image.sif_sha256,
        },
        "sif_published_sha256": image.sif_sha256,
        "sif_sha256": record["place"]["sha256"],
        **record,
    }


def _pull(spec: EngineSpec, image: Image, store: ImageStore) -> Document:
    """Resolve, compare, check the room, pull by digest."""
    what = f"engine {spec.engine}, {image.uri}"
    reference = parse_reference(image.uri)
    found = resolve(reference, pinned=image.digest)
    compare(found, image, spec.key)
    tool = find_tool()
    store.need(found.manifest.size_bytes, what)
    cache = store.tool_cache(image.digest)
    layers.sweep(cache)
    with store.working_folder(image.digest) as work:
        made = work / "image.sif"
        environ = tool_environment(tool, cache=cache, temporary=work, pulls=True)
        address = reference.by_digest(found.manifest.digest)
        say(f"{what}: pulling manifest digest {found.manifest.digest}")
        argv = tool.pull_argv(address, made, plain=plain_http(reference.host))
        run_tool(argv, environ, f"{what}: pulling by manifest digest", hint=_RETRY)
        hashed = layers.check(cache, found.manifest, what)
        record = store.adopt(image.digest, made, _pulled_facts(found, tool, hashed=hashed))
    store.forget_layers(image.digest)
    return record


def _pulled_facts(found: Resolved, tool: Tool, *, hashed: bool) -> Document:
    checked = "every blob" if hashed else "layers checked by the tool alone"
    return {
        "source": "registry",
        "gate": f"manifest digest, {checked}",
        "index_digest": found.index_digest,
        "manifest_digest": found.manifest.digest,
        "config_digest": found.manifest.config_digest,
        "layers": local_image.layer_rows(found.manifest),
        "size_bytes": found.manifest.size_bytes,
        **settings_facts(found.settings, str(found.reference)),
        "tool": tool.record(),
    }


def _convert(spec: EngineSpec, image: Image, path: Path, store: ImageStore) -> Document:
    """Verify a local layout or archive blob by blob, and convert it into the cache."""
    what = f"engine {spec.engine}, {path}"
    kind = local_image.kind_of(path)
    tool = find_tool()
    with store.working_folder(image.digest) as work:
        if kind == "docker-archive":
            found = local_image.read_docker_archive(path, image.digest)
        else:
            folder = path
            if kind == "oci-archive":
                store.need(path.stat().st_size, what)
                folder = work / "unpacked"
                local_image.unpack_archive(path, folder)
            found = local_image.read_layout(folder, image.digest, work / "layout")
        store.need(found.size_bytes, what)
        made = work / "image.sif"
        environ = tool_environment(tool, cache=work / "tool", temporary=work, pulls=False)
        run_tool(tool.build_argv(found.source, made), environ, f"{what}: converting", hint=_RETRY)
        facts = {
            "source": kind,
            "gate": "manifest digest, every blob"
            if found.manifest
            else "config digest, every layer",
            "index_digest": found.index_digest,
            "manifest_digest": found.manifest.digest if found.manifest else None,
            "config_digest": found.config_digest,
            "layers": found.layers,
            "size_bytes": found.size_bytes,
            **found.settings,
            "tool": tool.record(),
        }
        return store.adopt(image.digest, made, facts)


def _staged_sif(spec: EngineSpec, image: Image, path: Path) -> Document:
    """Gate a staged SIF by its pinned hash. It is used where it lies, never copied."""
    if image.sif_sha256 is None:
        raise PinError(
            f"engine {spec.engine}: {spec.key}.staged is a SIF file, which holds no registry "
            f"digest: pin its hash in {spec.key}.sif_sha256 (`kvstudy pin {spec.engine}` shows it)"
        )
    known = stamp(path)
    if known["sha256"] != image.sif_sha256:
        raise PinError(
            f"{path}: expected sha256 {image.sif_sha256} ({spec.key}.sif_sha256), found "
            f"{known['sha256']}. SIF bytes differ from pull to pull: stage the very file that was "
            "pinned, or drop `staged` to pull by digest"
        )
    return {
        "source": "staged-sif",
        "gate": "sif_sha256",
        "index_digest": image.index_digest,
        "manifest_digest": None,
        "config_digest": None,
        "layers": [],
        "size_bytes": known["size"],
        "labels": {},
        "platform": "linux/amd64",
        "tool": None,
        "place": known,
        "gated_sif_sha256": image.sif_sha256,
    }


def _host_command(spec: EngineSpec) -> Document:
    """An engine without an image: the executable is hashed; the probe checks its version."""
    found = shutil.which(spec.command[0]) if spec.command else None
    if found is None:
        raise PinError(
            f"engines.{spec.engine}.command: {' '.join(spec.command[:1])!r} is no executable here"
        )
    path = Path(found).resolve()
    return {
        "image_lock_version": IMAGE_LOCK_VERSION,
        "backend": spec.backend,
        "verified": False,
        "why": "a command of the host, pinned by no image; the probe checks its version",
        "kind": "host",
        "engine": spec.engine,
        "adapter": spec.adapter,
        "version": spec.version,
        "command": list(spec.command),
        "executable": str(Path(found).absolute()),
        "executable_sha256": sha256_file(path, progress_of(path)),
    }
