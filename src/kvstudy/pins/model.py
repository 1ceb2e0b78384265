"""The model rule: every file at the pinned commit, verified, and looked at again before use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstudy.base.digest import sha256_json
from kvstudy.base.errors import PinError
from kvstudy.base.files import read_json, write_json
from kvstudy.pins import hub
from kvstudy.pins.at_rest import Stamp, recheck, say
from kvstudy.pins.holding import held, need_space
from kvstudy.pins.hub import Listing
from kvstudy.pins.model_files import FOLDER_MANIFEST, verify_folder
from kvstudy.pins.spec import Document, emulated, model_of
from kvstudy.study.model import Model

MODEL_LOCK_VERSION = 1


def verify_model(spec: Mapping[str, Any], cache: Path, *, full: bool = False) -> Document:
    """Verify the model and make it ready; returns what its lock records.

    `full` hashes files again whose stamps still hold. Raises PinError naming each file that is
    missing, altered or extra.
    """
    if spec["backend"] == "emulated":
        return emulated(model=str(spec["model"]["repo"]))
    model = model_of(spec)
    store = ModelStore(cache, model)
    with held(store.lock, f"model {model.repo}"):
        listing = _listing(model, store)
        folder = _folder(model, listing)
        report = verify_folder(folder, listing, model.files, store.known(folder), full=full)
        store.remember(folder, report.stamps)
    total = sum(entry["size"] for entry in report.stamps.values())
    say(
        f"model {model.repo} at {model.revision}: {len(report.stamps)} files, {total} bytes, all "
        f"as expected ({report.hashed} hashed now)"
    )
    return {
        "model_lock_version": MODEL_LOCK_VERSION,
        "backend": spec["backend"],
        "verified": True,
        "repo": model.repo,
        "revision": model.revision,
        "path": str(folder),
        "checked_against": listing.source,
        "pinned": dict(model.files),
        "bytes": total,
        "files": {
            name: {"size": entry["size"], "sha256": entry["sha256"]}
            for name, entry in report.stamps.items()
        },
        "extra": report.extra,
        "stamps": report.stamps,
    }


def recheck_model(lock: Mapping[str, Any]) -> None:
    """Look at every file of a verified model again, cheaply; call it before each use.

    Raises PinError for one that was altered or is gone.
    """
    if lock["backend"] == "emulated":
        return
    for name, known in lock["stamps"].items():
        recheck(known, f"model {lock['repo']}, {name}")


@dataclass(frozen=True, slots=True)
class ModelStore:
    """Listings and stamps of verified folders, in the shared cache."""

    root: Path
    model: Model

    @property
    def _name(self) -> str:
        return f"{self.model.repo.replace('/', '--')}@{self.model.revision}"

    @property
    def lock(self) -> Path:
        """Lock file of this model."""
        return self.root / "locks" / f"model-{self._name}.lock"

    @property
    def manifest(self) -> Path:
        """The stored listing of the commit."""
        return self.root / "models" / f"{self._name}.manifest.json"

    def _stamps(self, folder: Path) -> Path:
        place = sha256_json(str(folder))[:16]
        return self.root / "models" / f"{self._name}.{place}.verified.json"

    def known(self, folder: Path) -> dict[str, Stamp]:
        """Stamps of a folder that was verified before."""
        path = self._stamps(folder)
        stamps: dict[str, Stamp] = read_json(path)["stamps"] if path.is_file() else {}
        return stamps

    def remember(self, folder: Path, stamps: Mapping[str, Stamp]) -> None:
        """Keep the stamps of a verified folder."""
        write_json(self._stamps(folder), {"folder": str(folder), "stamps": dict(stamps)})


def _listing(model: Model, store: ModelStore) -> Listing:
    """The commit's files: stored before, from the hub, or carried in a staged folder.

    A commit never changes, so a stored listing is as good as the hub's answer. One that travels in
    the folder proves only that the copy is whole: it is the last resort, and the lock says so.
    """
    if store.manifest.is_file():
        return _read_listing(store.manifest, model)
    carried = Path(model.path).expanduser() / FOLDER_MANIFEST if model.path else None
    has_carried = carried is not None and carried.is_file()
    try:
        if hub.offline():
            raise PinError(
                f"model {model.repo} at {model.revision}: HF_HUB_OFFLINE is set and no manifest is "
                f"stored at {store.manifest}. Run verify_model once online with the same "
                f"KVSTUDY_CACHE, or put the manifest into the folder as {FOLDER_MANIFEST}"
            )
        listing = hub.fetch_listing(model.repo, model.revision)
    except PinError:
        if carried is None or not has_carried:
            raise
        found = _read_listing(carried, model)
        return Listing(found.repo, found.revision, f"{FOLDER_MANIFEST} of the folder", found.files)
    write_json(store.manifest, listing.to_json())
    return listing


def _read_listing(path: Path, model: Model) -> Listing:
    listing = Listing.from_json(read_json(path), path)
    if (listing.repo, listing.revision) != (model.repo, model.revision):
        raise PinError(
            f"{path}: expected {model.repo} at {model.revision}, found {listing.repo} at "
            f"{listing.revision}"
        )
    return listing


def _folder(model: Model, listing: Listing) -> Path:
    """The staged folder, or the hub's own, completed when something is missing."""
    if model.path is not None:
        folder = Path(model.path).expanduser().absolute()
        if not folder.is_dir():
            raise PinError(f"model.path: {folder} is no folder on this machine")
        return folder
    folder = hub.snapshot_folder(model.repo, model.revision)
    missing = [name for name in listing.files if not (folder / name).is_file()]
    if not missing:
        return folder
    what = f"model {model.repo} at {model.revision}"
    if hub.offline():
        raise PinError(
            f"{what}: HF_HUB_OFFLINE is set and {len(missing)} of {len(listing.files)} files are "
            f"missing in {folder} (first: {missing[0]}). Fetch it on a machine that reaches the hub"
        )
    need_space({hub.hub_folder(): sum(listing.files[name].size for name in missing)}, what)
    say(f"{what}: fetching {len(missing)} files")
    return hub.fetch_snapshot(model.repo, model.revision)
