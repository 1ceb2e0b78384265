"""The model rule against a hub-compatible server on loopback, each time in a process of its own.

huggingface_hub reads its environment when it is imported, so the step runs as the workflow runs it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pins_hub_server as hubs
import pins_parts
import pytest

from kvstudy.base.errors import PinError
from kvstudy.pins.hub import HubFile, Listing, safe_name
from kvstudy.pins.model import recheck_model
from kvstudy.pins.model_files import hashes_of, verify_folder


@dataclass
class Site:
    """A user's machine: its caches, and the hub it talks to."""

    folder: Path
    hub: hubs.Hub

    def verify(self, *flags: str, env: dict[str, str] | None = None, **model: Any) -> Any:
        """Run the step; its lock, or its stderr when it stopped."""
        spec = {"repo": hubs.REPO, "revision": hubs.COMMIT, "files": {}, "path": None, **model}
        out = self.folder / "model.json"
        out.unlink(missing_ok=True)
        result = subprocess.run(
            [
                *(sys.executable, "-m", "kvstudy.steps.verify_model", *flags),
                *("--spec", json.dumps({"backend": "measured", "model": spec})),
                *("--cache", str(self.folder / "cache"), "--out", str(out)),
            ],
            env={
                **os.environ,
                "HF_HOME": str(self.folder / "hf"),
                "HF_ENDPOINT": self.hub.endpoint,
                "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                **(env or {}),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if result.returncode == 0:
            return json.loads(out.read_text())
        assert result.returncode == 2, result.stderr
        assert "Traceback" not in result.stderr
        assert not out.exists()
        return result.stderr

    @property
    def snapshot(self) -> Path:
        """Where the hub's library puts the commit."""
        return self.folder / "hf/hub/models--acme--tiny/snapshots" / hubs.COMMIT


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A machine with nothing on it yet."""
    with hubs.running_hub() as hub:
        yield Site(tmp_path, hub)


def test_every_file_is_fetched_and_verified_then_only_looked_at(site: Site) -> None:
    index = "model.safetensors.index.json"
    pinned = {index: f"sha256:{site.hub.sha256(index)}"}

    lock = site.verify(files=pinned)

    assert lock["verified"] is True
    assert lock["path"] == str(site.snapshot)
    assert {n: e["sha256"] for n, e in lock["files"].items()} == {
        name: site.hub.sha256(name) for name in site.hub.files
    }
    assert lock["bytes"] == sum(map(len, site.hub.files.values()))
    recheck_model(lock)
    asked = len(site.hub.seen)
    again = site.verify(files=pinned, env={"HF_HUB_OFFLINE": "1"})
    assert again == lock
    assert len(site.hub.seen) == asked


def test_tokens_stay_with_the_hub_and_out_of_every_text(site: Site) -> None:
    site.hub.token = "hf_planted"

    refused = site.verify()
    lock = site.verify(env={"HF_TOKEN": "hf_planted"})

    assert "does not list its files" in refused
    assert "HF_TOKEN" in refused
    assert {seen.authorization for seen in site.hub.seen if seen.host == "localhost"} == {None}
    kept = "".join(p.read_text() for p in (site.folder / "cache").rglob("*.json"))
    assert "planted" not in json.dumps(lock) + refused + kept
    assert "signed-secret" not in json.dumps(lock) + refused + kept


def test_a_corrupted_weight_file_stops_naming_both_hashes(site: Site) -> None:
    site.hub.corrupt = {"model.safetensors"}

    said = site.verify()

    assert f"model.safetensors: expected sha256 {site.hub.sha256('model.safetensors')}" in said
    assert f"Delete {site.snapshot / 'model.safetensors'} and " in said
    assert "1 problem(s)" in said
    blob = (site.snapshot / "model.safetensors").resolve()
    (site.snapshot / "model.safetensors").unlink()
    blob.unlink()
    site.hub.corrupt = set()
    assert site.verify()["verified"] is True


def test_a_corrupted_small_file_is_found_by_its_git_blob_id(site: Site) -> None:
    site.hub.corrupt = {"config.json"}

    said = site.verify()

    assert f"config.json: expected git-sha1 {site.hub.blob_id('config.json')}" in said


def test_a_cut_download_goes_on_where_it_stopped(site: Site) -> None:
    # The hub's library writes pieces of 10 MiB: what came after the last whole one is asked again.
    site.hub.files["model.safetensors"] = random.Random(5).randbytes(24 << 20)
    site.hub.cut_after = {"model.safetensors": 12 << 20}

    lock = site.verify()

    ranges = [seen.range for seen in site.hub.seen if seen.path == "/cdn/model.safetensors"]
    assert ranges == [None, f"bytes={10 << 20}-", f"bytes={20 << 20}-"]
    assert lock["verified"] is True


def test_a_download_that_never_finishes_is_not_used_and_goes_on_later(site: Site) -> None:
    site.hub.cut_after = {"model.safetensors": 1000}

    said = site.verify()

    assert "the download did not finish" in said
    assert "it goes on where it stopped" in said
    site.hub.cut_after = {}
    assert site.verify()["verified"] is True


def test_altered_truncated_missing_and_extra_files_are_all_named(site: Site) -> None:
    lock = site.verify()
    folder = site.folder / "staged"
    shutil.copytree(site.snapshot, folder)
    assert site.verify(path=str(folder))["path"] == str(folder)
    pins_parts.touch_same_size(folder / "second.safetensors")
    (folder / "model.safetensors").write_bytes(site.hub.files["model.safetensors"][:1000])
    (folder / "tokenizer.json").unlink()
    (folder / "modeling_evil.py").write_text("x = 1\n")
    (folder / "notes.md").write_text("hello\n")

    said = site.verify("--full", path=str(folder))

    assert "model.safetensors: expected 300000 bytes, found 1000" in said
    assert (
        f"second.safetensors: expected sha256 {lock['files']['second.safetensors']['sha256']}"
        in said
    )
    assert "tokenizer.json: missing" in said
    assert "modeling_evil.py: not in the commit, and an engine would read it" in said
    assert f"{folder / 'notes.md'} is not in the commit" in said
    assert "4 problem(s)" in said


def test_a_pinned_hash_that_the_commit_does_not_have_stops(site: Site) -> None:
    said = site.verify(
        files={"config.json": "sha256:" + "0" * 64, "gone.json": "sha256:" + "1" * 64}
    )

    assert f"config.json: expected sha256 {'0' * 64} (model.files), found" in said
    assert "gone.json: pinned in model.files, but the commit has no such file" in said


def test_offline_needs_a_stored_manifest_or_one_in_the_folder(site: Site) -> None:
    offline = {"HF_HUB_OFFLINE": "1"}
    assert "HF_HUB_OFFLINE is set and no manifest is stored" in site.verify(env=offline)

    site.verify()
    manifest = site.folder / "cache/models" / f"acme--tiny@{hubs.COMMIT}.manifest.json"
    folder = site.folder / "staged"
    shutil.copytree(site.snapshot, folder)
    shutil.move(manifest, folder / "kvstudy-manifest.json")

    lock = site.verify(path=str(folder), env=offline)

    assert lock["checked_against"] == "kvstudy-manifest.json of the folder"
    assert lock["extra"] == []
    (folder / "config.json").write_text("{}")
    assert "config.json: expected 24 bytes, found 2" in site.verify(path=str(folder), env=offline)


def test_a_hub_that_names_a_path_or_another_commit_is_refused(site: Site) -> None:
    site.hub.extra_names = ["../../../etc/cron.d/evil"]
    assert "would leave the model's folder; refused" in site.verify()

    site.hub.extra_names = []
    site.hub.sha = "d" * 40
    assert f"the hub answered with {'d' * 40}" in site.verify()


def test_a_hub_that_is_away_is_said_in_words(site: Site) -> None:
    said = site.verify(env={"HF_ENDPOINT": "http://127.0.0.1:9"})

    assert "the hub does not list its files (" in said
    assert "stage the model" in said


@pytest.mark.parametrize("name", ["", "/a", "a/../b", "..", "a\\b", "a//b", "./a", "a\0b"])
def test_names_never_leave_the_folder(name: str) -> None:
    with pytest.raises(PinError, match=r"would leave the model's folder"):
        safe_name(name, "x")


def test_hashes_are_those_of_git_and_sha256(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"hello\n")

    sha256, blob = hashes_of(path, 6, git=True)

    assert sha256 == "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
    assert hashes_of(path, 6, git=False) == (sha256, "")
    assert blob == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_a_verified_file_is_read_again_only_when_its_stamp_changed(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes(b"hello\n")
    blob = HubFile(6, "git-sha1", "ce013625030ba8dba906f756967f9e9ca394464a")
    listing = Listing("acme/tiny", "0" * 40, "hub", {"a.json": blob, "b.json": blob})
    first = verify_folder(tmp_path, listing, {}, {})
    os.utime(tmp_path / "b.json", ns=(1, 1))

    assert first.hashed == 2
    assert verify_folder(tmp_path, listing, {}, first.stamps).hashed == 1
    assert verify_folder(tmp_path, listing, {}, first.stamps, full=True).hashed == 2


def test_a_damaged_stored_manifest_is_refused(tmp_path: Path) -> None:
    good = {"repo": "r", "revision": "0", "source": "hub"}
    for files in ({"x": {}}, {"x": {"size": 1, "algorithm": "md5", "digest": "0"}}, [], None):
        with pytest.raises(PinError, match=r"damaged model manifest"):
            Listing.from_json({**good, "files": files}, tmp_path)
