"""The tool's own cache of layers, which the tool does not check.

Tried with Apptainer 1.4.5: a layer that was altered in its cache goes into the next image without
a word, and so does a finished image it kept. So each digest has a cache of its own that nobody
else fills; it is swept before a pull goes on, and every blob in it is hashed after the pull.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from kvstudy.base.digest import sha256_file
from kvstudy.base.errors import PinError
from kvstudy.pins.at_rest import progress_of, say
from kvstudy.pins.manifest import Manifest

_FINISHED = "oci-tmp"


def sweep(cache: Path) -> None:
    """Remove finished images, and blobs that are not what their names say (cut or altered)."""
    for folder in cache.glob(f"**/{_FINISHED}"):
        shutil.rmtree(folder, ignore_errors=True)
    for path in _blobs(cache).values():
        if sha256_file(path, progress_of(path)) != path.name:
            say(f"{path}: not whole; fetched again")
            path.unlink()


def check(cache: Path, manifest: Manifest, what: str) -> bool:
    """Hash every blob the tool used; whether all of the manifest's were there to be hashed.

    Raises PinError for one that is not what the manifest says.
    """
    found = _blobs(cache)
    wanted = [manifest.digest, manifest.config_digest, *(layer.digest for layer in manifest.layers)]
    names = [digest.removeprefix("sha256:") for digest in wanted]
    for name in names:
        if name in found:
            digest = sha256_file(found[name], progress_of(found[name]))
            if digest != name:
                raise PinError(
                    f"{what}: the tool used a blob that is not sha256:{name} but sha256:{digest}; "
                    "the image is not used. Run again; look at the disk below "
                    f"{cache} when it happens twice"
                )
    return all(name in found for name in names)


def _blobs(cache: Path) -> dict[str, Path]:
    return {path.name: path for path in cache.glob("**/blobs/sha256/*") if path.is_file()}
