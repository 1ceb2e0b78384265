"""A hostile zip is refused by the name of what is wrong, and writes nothing."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstudy.base.errors import DataError
from kvstudy.bundle.unpack import Limits, opened
from kvstudy.bundle.verify import verify

Make = Callable[[zipfile.ZipFile], None]


def entry(name: str, *, mode: int = 0o100644, content: bytes = b"x") -> Make:
    def add(archive: zipfile.ZipFile) -> None:
        info = zipfile.ZipInfo(name)
        info.create_system = 3
        info.external_attr = mode << 16
        archive.writestr(info, content)

    return add


def twice(archive: zipfile.ZipFile) -> None:
    archive.writestr("a", "1")
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("a", "2")


def by_case(archive: zipfile.ZipFile) -> None:
    archive.writestr("Tables/a", "1")
    archive.writestr("tables/A", "2")


def nested(archive: zipfile.ZipFile) -> None:
    archive.writestr("a", "1")
    archive.writestr("a/b", "2")


def bomb(archive: zipfile.ZipFile) -> None:
    archive.writestr("zeros", b"\0" * (8 << 20), compress_type=zipfile.ZIP_DEFLATED)


def many_small_bombs(archive: zipfile.ZipFile) -> None:
    for index in range(12):
        content = b"\0" * (1 << 20)
        archive.writestr(f"zeros{index}", content, compress_type=zipfile.ZIP_DEFLATED)


def packed_oddly(archive: zipfile.ZipFile) -> None:
    archive.writestr("a", "1", compress_type=zipfile.ZIP_LZMA)


HOSTILE: dict[str, tuple[Make, str]] = {
    "climbs": (entry("../evil"), "not a plain path"),
    "climbs inside": (entry("tables/../../evil"), "not a plain path"),
    "absolute": (entry("/tmp/evil"), "not a plain path"),  # noqa: S108
    "drive": (entry("C:/evil"), "not a plain path"),
    "backslash": (entry("..\\evil"), "not a plain path"),
    "control": (entry("a\nb"), "not a plain path"),
    "dot": (entry("./a"), "not a plain path"),
    "empty part": (entry("a//b"), "not a plain path"),
    "link": (entry("link", mode=0o120777, content=b"/etc/passwd"), "a link or a special file"),
    "device": (entry("null", mode=0o020666), "a link or a special file"),
    "folder with content": (entry("a/", mode=0o040755), "a folder with content"),
    "twice": (twice, "stands twice"),
    "twice by case": (by_case, "stands twice"),
    "file as folder": (nested, "below 'a', a file"),
    "bomb": (bomb, "unpacks to"),
    "many small bombs": (many_small_bombs, "unpacks to"),
    "method": (packed_oddly, "packed by a method"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_is_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, why = HOSTILE[case]
    scratch = tmp_path / "inner" / "scratch"
    scratch.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    path = tmp_path / "hostile.zip"
    with zipfile.ZipFile(path, "w") as archive:
        make(archive)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match="refused") as caught:
        verify(path)
    assert why in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_declared_sizes_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for index in range(5):
            archive.writestr(str(index), b"x" * 100)
    for limits in (Limits(members=4), Limits(member_bytes=99), Limits(total_bytes=499)):
        with pytest.raises(DataError, match="refused"), opened(path, limits):
            pass
    with opened(path, Limits(members=5, member_bytes=100, total_bytes=500)) as archive:
        assert archive.names == ["0", "1", "2", "3", "4"]


def test_a_member_that_holds_more_than_it_says_is_cut_and_named(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"0123456789" * 100_000)
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = content.index(signature) + offset
        content[at : at + 4] = struct.pack("<I", 10)
    path.write_bytes(content)
    with opened(path) as archive:
        read = bytearray()
        with pytest.raises(DataError, match="a: damaged"):
            for chunk in archive.chunks("a"):
                read += chunk
    assert len(read) <= 10


def test_overlapping_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"x" * 50)
        archive.writestr("b", b"x" * 50)
    content = path.read_bytes()
    at = content.rindex(b"PK\x01\x02") + 42
    path.write_bytes(content[:at] + struct.pack("<I", 0) + content[at + 4 :])
    with pytest.raises(DataError, match="overlaps"), opened(path):
        pass


def test_an_index_of_millions_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 60000, 60000, 2**31, 0, 0)
    path.write_bytes(end)
    with pytest.raises(DataError, match="an index of 60000 members"), opened(path):
        pass


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x05\x06", b"PK\x03\x04" + b"\0" * 200])
def test_what_is_no_zip_is_said_to_be_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"not a .*zip"), opened(path):
        pass


def test_a_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a folder"), opened(tmp_path):
        pass
    with pytest.raises(DataError, match="no such file"), opened(tmp_path / "no.zip"):
        pass


def test_any_zip_is_not_a_bundle(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "1")
    with pytest.raises(DataError, match=r"holds no checksums\.json"):
        verify(path)
