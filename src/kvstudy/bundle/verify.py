"""Is a bundle what it says: every file against its checksum, every table against its raw rows."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstudy.base.errors import DataError
from kvstudy.bundle.publish import ABOUT, CHECKSUMS, FORMAT, code_of_numbers
from kvstudy.bundle.recompute import Difference, guarded, recompute
from kvstudy.bundle.unpack import Archive, Limits, opened

_NEEDED = ("study.json", "plan.json", "tables/", "stats/", "cells/", "predicted/", "published/")
_NEEDED_TOO = ("tokenizer/", "pins/", "workloads/")
_NOT_NEEDED = ("telemetry.jsonl", "server.log")
_SHA = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class Report:
    """What was found; no differences means the bundle is sound."""

    bundle: Path
    content_sha256: str
    about: dict[str, Any]
    files: int = 0
    recomputed: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether everything matched."""
        return not self.differences


def verify(
    bundle: Path,
    *,
    tokenizer: Path | None = None,
    simulated: bool = True,
    limits: Limits | None = None,
    step: Callable[[str], None] = lambda _text: None,
) -> Report:
    """Check a bundle from end to end. Nothing is written outside a temporary folder.

    Raises DataError for a file that is not a bundle or is refused (see `bundle.unpack`).
    """
    with opened(bundle, limits) as archive, tempfile.TemporaryDirectory(prefix="kvstudy-") as tmp:
        sums = archive.read(CHECKSUMS)
        listed = listing(sums, bundle)
        step(f"hashing {len(listed)} files")
        report = Report(bundle, hashlib.sha256(sums).hexdigest(), {}, files=len(listed))
        folder = Path(tmp, "bundle")
        report.differences += unpacked(archive, listed, folder, needed)
        damaged = [d.name for d in report.differences if needed(d.name)]
        report.about = about_of(archive, bundle)
        report.differences += list(_manifests(listed, report.about, folder))
        report.remarks += _remarks(report.about)
        if damaged:
            report.remarks.append(f"tables were not recomputed: {', '.join(damaged[:3])} damaged")
            return report
        step("recomputing every table from the raw rows")
        found, stopped = guarded(
            lambda: recompute(folder, Path(tmp, "fresh"), tokenizer, simulated=simulated), "tables/"
        )
        if stopped is not None:
            report.differences.append(stopped)
            return report
        report.differences += found[0]
        report.recomputed, remarks = found[1], found[2]
        report.remarks += remarks
    return report


def needed(name: str) -> bool:
    """Whether a file is read when tables are recomputed."""
    return name.startswith((*_NEEDED, *_NEEDED_TOO)) and not name.endswith(_NOT_NEEDED)


def listing(content: bytes, bundle: Path) -> dict[str, str]:
    """Member name to SHA-256, from a checksums.json that is checked itself."""
    try:
        document = json.loads(content)
        if document["format"] != FORMAT:
            raise DataError(
                f"{bundle}: {CHECKSUMS} is of format {document['format']!r}, this kvstudy reads "
                f"{FORMAT}"
            )
        found = {name: entry["sha256"] for name, entry in document["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{bundle}: {CHECKSUMS} is not a list of checksums ({error!r})") from None
    for name, value in found.items():
        if not isinstance(value, str) or not _SHA.fullmatch(value):
            raise DataError(f"{bundle}: {CHECKSUMS}: {name}: not a SHA-256")
    return found


def unpacked(
    archive: Archive, listed: dict[str, str], folder: Path, keep: Callable[[str], bool]
) -> Iterator[Difference]:
    """Hash every member in one pass, writing those to `keep` below the fresh folder."""
    folder.mkdir()
    names = set(archive.names) - {CHECKSUMS}
    for name in sorted(names - listed.keys()):
        yield Difference(name, f"in the bundle, but not in {CHECKSUMS}")
    for name in sorted(listed):
        if name not in names:
            yield Difference(name, f"in {CHECKSUMS}, but not in the bundle")
            continue
        digest = hashlib.sha256()
        try:
            source = _hashing(archive.chunks(name), digest.update)
            _write(folder / name if keep(name) else None, source)
        except DataError as error:
            yield Difference(name, str(error).removeprefix(f"{archive.path}: {name}: "))
            continue
        if digest.hexdigest() != listed[name]:
            yield Difference(
                name, f"sha256 {digest.hexdigest()[:12]}, {CHECKSUMS} says {listed[name][:12]}"
            )


def _hashing(chunks: Iterable[bytes], update: Callable[[bytes], None]) -> Iterator[bytes]:
    for chunk in chunks:
        update(chunk)
        yield chunk


def _write(path: Path | None, chunks: Iterable[bytes]) -> None:
    """Write a new file, or only use the chunks up."""
    if path is None:
        for _ in chunks:
            pass
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as handle:
        for chunk in chunks:
            handle.write(chunk)


def about_of(archive: Archive, bundle: Path) -> dict[str, Any]:
    """bundle.json; DataError when it is not what this kvstudy reads."""
    try:
        about = json.loads(archive.read(ABOUT))
        if about["format"] != FORMAT or not isinstance(about["scrubbed"], dict):
            raise DataError(f"{bundle}: {ABOUT}: not of format {FORMAT}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{bundle}: {ABOUT} cannot be read ({error!r})") from None
    return dict(about)


def _manifests(listed: dict[str, str], about: dict[str, Any], folder: Path) -> Iterator[Difference]:
    """Files of a cell against the manifest that sealed its attempt when it was measured."""
    for name in sorted(listed):
        if not (name.startswith("cells/") and name.endswith("/manifest.json")):
            continue
        if not (folder / name).is_file():
            continue
        try:
            sealed = json.loads((folder / name).read_bytes())["files"]
            pairs = {f"{name.rpartition('/')[0]}/{file}": sha for file, sha in sealed.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            yield Difference(name, "not a manifest of a cell's attempt")
            continue
        for member, sha in sorted(pairs.items()):
            if member in listed and listed[member] != sha and member not in about["scrubbed"]:
                yield Difference(member, f"not the file that {name} sealed when it was measured")


def _remarks(about: dict[str, Any]) -> list[str]:
    remarks = []
    if about.get("code") != code_of_numbers():
        remarks.append(
            f"made by other code (kvstudy {about.get('kvstudy')}): a table that differs may be a "
            "changed definition; verify with the commit of the bundle to tell"
        )
    remarks += [
        f"masked before publishing: {name} ({hits} lines)"
        for name, hits in sorted(about["scrubbed"].items())
    ]
    return remarks
