"""The model hub: which files a commit has, with the hub's own hashes, and how they are fetched.

huggingface_hub reads HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE itself; this module neither
sees the token nor names a host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import urlsplit

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from kvstudy.base.digest import sha256_file
from kvstudy.base.errors import PinError
from kvstudy.pins.credentials import scrub

# The transport's own errors: which HTTP library huggingface_hub uses differs between its versions.
_TRANSPORT: tuple[type[Exception], ...] = tuple(
    base
    for base in HfHubHTTPError.__mro__
    if issubclass(base, Exception) and base.__name__ == "HTTPError"
)
_FAULTS: tuple[type[Exception], ...] = (
    OSError,
    *_TRANSPORT,
    OfflineModeIsEnabled,
    RuntimeError,
    ValueError,
)
_HEX = {"sha256": 64, "git-sha1": 40}


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a commit: LFS files by SHA-256, all others by their git blob id."""

    size: int
    algorithm: Literal["sha256", "git-sha1"]
    digest: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Every file of a commit, and who said so."""

    repo: str
    revision: str
    source: str
    files: dict[str, HubFile]

    def to_json(self) -> dict[str, Any]:
        """As it is stored beside the cache or in a staged folder."""
        return {
            "repo": self.repo,
            "revision": self.revision,
            "source": self.source,
            "files": {
                name: {"size": f.size, "algorithm": f.algorithm, "digest": f.digest}
                for name, f in sorted(self.files.items())
            },
        }

    @classmethod
    def from_json(cls, values: Any, where: Path) -> Listing:
        """Check a stored listing; raises PinError for a damaged one."""
        try:
            files = {
                safe_name(name, str(where)): HubFile(
                    int(entry["size"]), entry["algorithm"], str(entry["digest"])
                )
                for name, entry in values["files"].items()
            }
            listing = cls(
                str(values["repo"]), str(values["revision"]), str(values["source"]), files
            )
            whole = all(len(f.digest) == _HEX[f.algorithm] for f in files.values())
        except (KeyError, TypeError, ValueError, AttributeError):
            whole = False
        if not whole:
            raise PinError(f"{where}: damaged model manifest; delete it and run again online")
        return listing


def offline() -> bool:
    """Whether the user told huggingface_hub to stay off the network."""
    return bool(constants.HF_HUB_OFFLINE)


def hub_folder() -> Path:
    """Where huggingface_hub keeps models (HF_HOME, HF_HUB_CACHE)."""
    return Path(constants.HF_HUB_CACHE)


def fetch_listing(repo: str, revision: str) -> Listing:
    """Ask the hub for every file of a commit; raises PinError when it cannot say."""
    what = f"model {repo} at {revision}"
    try:
        info = HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=30)
    except _FAULTS as error:
        raise PinError(
            f"{what}: the hub does not list its files ({_brief(error)}). Check model.repo and "
            "model.revision, and HF_TOKEN for a gated model; run again on a machine that reaches "
            "the hub, or stage the model (docs/pins.md)"
        ) from None
    if info.sha != revision and len(revision) == 40:
        raise PinError(f"{what}: expected this commit, the hub answered with {info.sha}")
    source = urlsplit(constants.ENDPOINT).hostname or "hub"
    files = {}
    for sibling in info.siblings or []:
        name = safe_name(sibling.rfilename, what)
        if sibling.lfs is not None:
            files[name] = HubFile(int(sibling.lfs.size), "sha256", str(sibling.lfs.sha256))
        elif sibling.size is None or sibling.blob_id is None:
            raise PinError(f"{what}: the hub states no hash for {name}; it cannot be verified")
        else:
            files[name] = HubFile(int(sibling.size), "git-sha1", str(sibling.blob_id))
    return Listing(repo, str(info.sha), source, files)


def fetch_snapshot(repo: str, revision: str) -> Path:
    """Download what is missing of a commit; goes on where an earlier try was cut.

    Raises PinError; what was fetched so far is kept.
    """
    try:
        return Path(snapshot_download(repo, revision=revision, max_workers=4))
    except _FAULTS as error:
        raise PinError(
            f"model {repo} at {revision}: the download did not finish ({_brief(error)}). Run "
            "again: it goes on where it stopped"
        ) from None


def file_sha256(repo: str, revision: str, name: str) -> str:
    """Hex SHA-256 of one small file of a commit, fetched for it; raises PinError."""
    try:
        return sha256_file(Path(hf_hub_download(repo, name, revision=revision)))
    except _FAULTS as error:
        raise PinError(
            f"model {repo} at {revision}: cannot read {name} ({_brief(error)})"
        ) from None


def snapshot_folder(repo: str, revision: str) -> Path:
    """Where huggingface_hub puts a commit; need not exist."""
    return hub_folder() / f"models--{repo.replace('/', '--')}" / "snapshots" / revision


def safe_name(name: Any, where: str) -> str:
    """A file name of a repository when it stays inside a folder; raises PinError otherwise."""
    text = str(name)
    parts = PurePosixPath(text).parts
    bad = {"..", "/", ""} & set(parts) or not parts or "\\" in text or "\0" in text
    if bad or text.startswith("/") or PurePosixPath(text).as_posix() != text:
        raise PinError(f"{where}: file name {text[:100]!r} would leave the model's folder; refused")
    return text


def _brief(error: BaseException) -> str:
    text = re.sub(r"\s+", " ", str(error)).strip()
    return scrub(f"{type(error).__name__}: {text}")[:400]
