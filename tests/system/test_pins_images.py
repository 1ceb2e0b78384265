"""Images on real parts: a real registry, a real Apptainer, tampering, cuts, a full disk, races.

Needs root on Debian with the packages of tests/system/apt-packages.txt; skipped with the reason
where a part cannot be had. The images are constructed: busybox, this host's Python, and package
trees that only look like an engine.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import registry as parts

from kvstudy.base.digest import sha256_file
from kvstudy.base.errors import PinError
from kvstudy.pins.lock import ready_runtime

pytestmark = pytest.mark.system

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "unit" / "pins"))
from pins_engine_tree import trtllm_tree  # noqa: E402 - shared with the unit tests

SITE = "usr/lib/python3/dist-packages"
# Root here lacks a capability that Apptainer wants to hand on; for tests only.
APPTAINER_HERE = {"APPTAINER_DROP_CAPS": "CAP_SYS_RESOURCE"}
ENGINE = "trtllm-1.2.1"


@pytest.fixture(scope="session")
def apptainer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a real Apptainer: the machine's, or Debian sid's with its own C library."""
    found = shutil.which("apptainer")
    if found:
        return found
    if os.geteuid() != 0:
        pytest.skip("no apptainer on this machine, and not root, so none can be fetched")
    root = os.environ.get("APPTAINER_ROOT") or str(tmp_path_factory.mktemp("tool") / "apptainer")
    result = subprocess.run(
        [str(HERE / "apptainer-up.sh")],
        env={**os.environ, "APPTAINER_ROOT": root},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if result.returncode != 0:
        pytest.skip(f"no real Apptainer to be had: {result.stderr.strip()[-300:]}")
    return result.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="session", autouse=True)
def programs() -> None:
    """Skip where the registry or the image tools are missing."""
    missing = parts.missing_programs()
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (tests/system/apt-packages.txt)")


@pytest.fixture(scope="session")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Constructed images: one with Python and a fake engine, and a small other one."""
    folder = tmp_path_factory.mktemp("images")
    tree = {f"{SITE}/{name}": body for name, body in trtllm_tree("1.2.1").items()}
    trtllm = parts.build_image(folder / "engine", tree, python=True)
    other = parts.build_image(folder / "other", {"marker": b"another image\n"}, python=False)
    return {"engine": trtllm, "other": other}


@dataclass
class Place:
    """A registry with a pushed image, and a user's machine beside it."""

    folder: Path
    registry: parts.Registry
    image: parts.Pushed
    tool: str
    env: dict[str, str] = field(default_factory=dict)

    @property
    def cache(self) -> Path:
        """The shared cache."""
        return self.folder / "cache"

    @property
    def sif(self) -> Path:
        """Where the image lies once it is complete."""
        return self.cache / "images" / f"{self.image.manifest_digest.replace(':', '-')}.sif"

    def spec(self, **image: Any) -> str:
        """The rule's JSON."""
        values = {
            "uri": f"docker://{self.registry.host}/{self.image.name}:v1",
            "digest": self.image.manifest_digest,
            "index_digest": self.image.index_digest,
            "sif_sha256": None,
            "staged": None,
        }
        spec = {
            "backend": "measured",
            "engine": ENGINE,
            "adapter": "trtllm",
            "version": "1.2.1",
            "image": {**values, **image},
            "command": [],
        }
        return json.dumps(spec)

    def start(self, spec: str, out: str = "image.json") -> subprocess.Popen[str]:
        """Start the step as the workflow does."""
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "kvstudy.steps.verify_image", "--spec", spec),
                *("--cache", str(self.cache), "--out", str(self.folder / out)),
            ],
            env={**os.environ, **APPTAINER_HERE, "KVSTUDY_APPTAINER": self.tool, **self.env},
            stderr=subprocess.PIPE,
            text=True,
        )

    def verify(self, **image: Any) -> Any:
        """Run the step; its lock, or what it said when it stopped."""
        with self.start(self.spec(**image)) as process:
            _, said = process.communicate(timeout=120)
        if process.returncode == 0:
            return json.loads((self.folder / "image.json").read_text())
        assert process.returncode == 2, said
        assert "Traceback" not in said
        return said

    def assert_nothing_looks_complete(self) -> None:
        """No image, no record."""
        folder = self.cache / "images"
        assert not folder.exists() or list(folder.iterdir()) == []
        assert not (self.folder / "image.json").exists()


@pytest.fixture
def place(
    tmp_path: Path, layouts: dict[str, Path], apptainer: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A fresh registry with the constructed engine image, and an empty cache."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    with parts.running_registry(tmp_path / "registry") as running:
        pushed = running.push(layouts["engine"], "kv/engine", "v1")
        yield Place(tmp_path, running, pushed, apptainer)


def probe(place: Place, spec: str) -> subprocess.CompletedProcess[str]:
    """Run the probe step on a verified image."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "kvstudy.steps.probe_engine", "--spec", spec),
            *("--image-lock", str(place.folder / "image.json")),
            *("--out", str(place.folder / "probe.json")),
        ],
        env={**os.environ, **APPTAINER_HERE, "KVSTUDY_APPTAINER": place.tool},
        capture_output=True,
        text=True,
        check=False,
    )


def test_pull_by_digest_convert_hash_probe_and_execute(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = place.verify()

    seen = json.loads(
        parts.run(
            *("skopeo", "inspect", "--tls-verify=false"),
            f"docker://{place.registry.host}/kv/engine@{place.image.manifest_digest}",
        )
    )
    assert lock["manifest_digest"] == seen["Digest"] == place.image.manifest_digest
    assert lock["index_digest"] == place.image.index_digest != lock["manifest_digest"]
    assert lock["config_digest"] == place.image.config_digest
    assert [layer["digest"] for layer in lock["layers"]] == seen["Layers"]
    assert lock["labels"] == seen["Labels"]
    assert lock["sif_sha256"] == sha256_file(place.sif)
    assert lock["tool"]["name"] == "apptainer"
    assert lock["gate"] == "manifest digest, every blob"

    result = probe(place, place.spec())
    assert result.returncode == 0, result.stderr
    facts = json.loads((place.folder / "probe.json").read_text())["facts"]
    assert facts["packages"]["tensorrt_llm"] == "1.2.1"
    assert facts["engines"]["tensorrt_llm"]["executor"]["max_input_len_default"] == 2048
    assert facts["system"]["os"] == "Constructed test image"
    wrong = probe(place, place.spec().replace('"version": "1.2.1"', '"version": "1.3.0rc22"'))
    assert wrong.returncode == 2
    assert "expected tensorrt_llm 1.3.0rc22" in wrong.stderr

    monkeypatch.setenv("KVSTUDY_APPTAINER", place.tool)
    for name, value in {**APPTAINER_HERE, "HF_TOKEN": "planted"}.items():
        monkeypatch.setenv(name, value)
    runtime = ready_runtime(lock, ENGINE)
    (place.folder / "model").mkdir()
    (place.folder / "model" / "config.json").write_text("{}")
    (place.folder / "scratch").mkdir()
    key = """a 'b' "c" $HOME $(echo evil) `id` end"""
    script = 'cat /model/config.json; echo "key=$KEY"; env; echo x > /tmp/made; echo y > /model/no'
    argv = runtime.argv(
        ["sh", "-c", script],
        scratch=place.folder / "scratch",
        binds={place.folder / "model": "/model"},
    )
    ran = subprocess.run(
        argv,
        env={**os.environ, **runtime.environment({"KEY": key})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.startswith(f"{{}}key={key}\n"), ran.stderr
    assert "planted" not in ran.stdout
    assert "Read-only file system" in ran.stderr
    assert "a 'b'" not in " ".join(argv)
    assert [p.name for p in (place.folder / "scratch").rglob("made")] == ["made"]


def test_a_second_run_needs_no_registry(
    tmp_path: Path, layouts: dict[str, Path], apptainer: str
) -> None:
    with parts.running_registry(tmp_path / "registry") as running:
        place = Place(tmp_path, running, running.push(layouts["other"], "kv/o", "v1"), apptainer)
        lock = place.verify()

    assert place.verify() == lock


def test_a_swapped_tag_stops_and_the_pinned_bytes_can_still_be_run(
    place: Place, layouts: dict[str, Path]
) -> None:
    other = place.registry.push(layouts["other"], "kv/engine", "v1")

    said = place.verify()

    assert f"expected manifest digest {place.image.manifest_digest}" in said
    assert f"found {other.manifest_digest}" in said
    place.assert_nothing_looks_complete()
    by_digest = f"docker://{place.registry.host}/kv/engine@{place.image.manifest_digest}"
    assert place.verify(uri=by_digest)["manifest_digest"] == place.image.manifest_digest


def test_each_message_says_which_digest_it_means(place: Place) -> None:
    index = place.image.index_digest

    assert f"{index} is the index digest of" in place.verify(digest=index)
    wrong = "sha256:" + "0" * 64
    assert f"expected index digest {wrong}, found {index}" in place.verify(index_digest=wrong)
    uri = f"docker://{place.registry.host}/kv/engine@{wrong}"
    assert "the registry does not have it (404)" in place.verify(uri=uri, digest=wrong)
    place.assert_nothing_looks_complete()


def test_an_altered_layer_is_refused(place: Place) -> None:
    blob = place.registry.blob(place.image.layer_digests[0])
    body = bytearray(blob.read_bytes())
    body[len(body) // 2] ^= 1
    blob.write_bytes(body)

    said = place.verify()

    assert "pulling by manifest digest" in said
    assert "did not match" in said.lower() or "digest" in said.lower()
    place.assert_nothing_looks_complete()


def test_an_altered_manifest_is_refused(place: Place) -> None:
    blob = place.registry.blob(place.image.manifest_digest)
    blob.write_bytes(blob.read_bytes().replace(b'"size"', b'"sizf"', 1))

    said = place.verify()

    assert place.image.manifest_digest in said
    place.assert_nothing_looks_complete()


def test_a_cut_connection_leaves_nothing_and_the_next_try_succeeds(place: Place) -> None:
    with parts.cutting_proxy(place.registry.port) as proxy:
        uri = f"docker://127.0.0.1:{proxy.server_address[1]}/kv/engine:v1"
        proxy.budget = 6_000_000

        said = place.verify(uri=uri)

        assert proxy.cuts >= 1
        assert "pulling by manifest digest" in said
        assert "nothing of it is used; run again" in said
        place.assert_nothing_looks_complete()
        proxy.budget = None
        lock = place.verify(uri=uri)

    assert lock["manifest_digest"] == place.image.manifest_digest
    assert list((place.cache / "work").iterdir()) == []


def test_a_layer_altered_in_the_tools_own_cache_is_fetched_again(place: Place) -> None:
    """Apptainer itself takes what lies in its cache without hashing it."""
    layer = place.image.layer_digests[0].removeprefix("sha256:")
    own = place.cache / "layers" / place.image.manifest_digest.replace(":", "-")
    env = {**os.environ, **APPTAINER_HERE, "APPTAINER_CACHEDIR": str(own)}
    address = f"docker://{place.registry.host}/kv/engine@{place.image.manifest_digest}"

    def pull(name: str) -> int:
        argv = [place.tool, "pull", "--no-https", str(place.folder / name), address]
        return subprocess.run(argv, env=env, capture_output=True, check=False).returncode

    assert pull("a.sif") == 0
    (blob,) = own.rglob(layer)
    body = bytearray(blob.read_bytes())
    body[-1] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(body)

    lock = place.verify()

    assert lock["gate"] == "manifest digest, every blob"
    assert not own.exists()


@pytest.fixture
def small_disk(place: Place) -> Iterator[Path]:
    """A file system of 40 MB where the cache lies."""
    place.cache.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(place.cache)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small tmpfs: {mounted.stderr.strip()}")
    try:
        yield place.cache
    finally:
        subprocess.run(["umount", "-l", str(place.cache)], check=False)


def test_a_small_disk_is_seen_before_the_pull(place: Place, small_disk: Path) -> None:
    said = place.verify()

    assert "needs about" in said
    assert "has 0.04" in said
    assert "Nothing was fetched" in said
    place.assert_nothing_looks_complete()


def test_a_disk_that_fills_during_the_pull_leaves_nothing(place: Place, small_disk: Path) -> None:
    code = (
        "import sys\nimport kvstudy.pins.store as s\n"
        "s.UNPACKED_SHARE = s.SIF_SHARE = 0.0\n"
        "from kvstudy.steps.run import run\nfrom kvstudy.steps.verify_image import main\nrun(main)"
    )
    result = subprocess.run(
        [
            *(sys.executable, "-c", code, "--spec", place.spec(), "--cache", str(place.cache)),
            *("--out", str(place.folder / "image.json")),
        ],
        env={**os.environ, **APPTAINER_HERE, "KVSTUDY_APPTAINER": place.tool},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 2
    assert "no space left" in result.stderr.lower()
    assert "Traceback" not in result.stderr
    place.assert_nothing_looks_complete()
    assert list((small_disk / "work").iterdir()) == []


def test_racing_jobs_pull_once(place: Place) -> None:
    with parts.cutting_proxy(place.registry.port) as proxy:
        uri = f"docker://127.0.0.1:{proxy.server_address[1]}/kv/engine:v1"
        jobs = [place.start(place.spec(uri=uri), f"{n}.json") for n in range(3)]
        said = []
        for job in jobs:
            with job:
                said.append(job.communicate(timeout=120)[1])
                assert job.returncode == 0, said[-1]

    locks = [json.loads((place.folder / f"{n}.json").read_text()) for n in range(3)]
    assert locks[0] == locks[1] == locks[2]
    text = "".join(said)
    assert text.count("pulling manifest digest") == 1
    assert "another job is at it; waiting" in text


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_an_interrupted_pull_is_started_anew(place: Place, end: signal.Signals) -> None:
    job = place.start(place.spec())
    work = place.cache / "work"
    for _ in range(400):
        if list(work.glob("*/*")):
            break
        time.sleep(0.01)
    with job:
        job.send_signal(end)
        job.communicate(timeout=60)
    assert job.returncode in (-signal.SIGKILL, 128 + signal.SIGTERM)
    place.assert_nothing_looks_complete()

    assert place.verify()["manifest_digest"] == place.image.manifest_digest
    assert list(work.iterdir()) == []


def test_a_file_altered_at_rest_stops_before_use(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSTUDY_APPTAINER", place.tool)
    lock = place.verify()
    body = bytearray(place.sif.read_bytes())
    body[random.Random(1).randrange(len(body))] ^= 1
    place.sif.write_bytes(body)

    with pytest.raises(PinError, match=r"altered after it was verified"):
        ready_runtime(lock, ENGINE)
    assert "was altered after it was verified" in place.verify()
    assert "was altered after it was verified" in probe(place, place.spec()).stderr


def test_staged_forms_are_verified_and_converted_without_a_registry(
    tmp_path: Path, layouts: dict[str, Path], apptainer: str
) -> None:
    with parts.running_registry(tmp_path / "registry") as running:
        place = Place(tmp_path, running, running.push(layouts["other"], "kv/o", "v1"), apptainer)
        source = f"docker://{running.host}/kv/o"
        copy = ("skopeo", "copy", "--insecure-policy", "--src-tls-verify=false")
        wanted = f"{source}@{place.image.manifest_digest}"
        parts.run(*copy, "--preserve-digests", wanted, f"oci:{tmp_path / 'layout'}:v1")
        parts.run(
            *copy, "--preserve-digests", "--all", f"{source}:v1", f"oci:{tmp_path / 'all'}:v1"
        )
        parts.run(*copy, "--preserve-digests", wanted, f"oci-archive:{tmp_path / 'image.tar'}")
        parts.run(*copy, f"{source}:v1-amd64", f"docker-archive:{tmp_path / 'docker.tar'}:o:v1")
        pulled = place.verify()
    shutil.copy(place.sif, tmp_path / "staged.sif")

    for number, form in enumerate(("layout", "all", "image.tar")):
        shutil.rmtree(place.cache)
        lock = place.verify(staged=str(tmp_path / form))
        assert lock["manifest_digest"] == place.image.manifest_digest, (number, lock)
        assert lock["labels"] == pulled["labels"]
    shutil.rmtree(place.cache)
    lock = place.verify(
        uri=f"docker-archive://{tmp_path / 'docker.tar'}", digest=place.image.config_digest
    )
    assert lock["gate"] == "config digest, every layer"
    sif = str(tmp_path / "staged.sif")
    lock = place.verify(staged=sif, sif_sha256=pulled["sif_sha256"])
    assert (lock["gate"], lock["place"]["path"]) == ("sif_sha256", sif)
    assert f"expected sha256 {'0' * 64}" in place.verify(staged=sif, sif_sha256="0" * 64)

    layer = place.image.layer_digests[0].removeprefix("sha256:")
    blob = tmp_path / "layout/blobs/sha256" / layer
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    said = place.verify(staged=str(tmp_path / "layout"))
    assert f"expected digest sha256:{layer}" in said


def test_sif_bytes_differ_from_pull_to_pull(
    tmp_path: Path, layouts: dict[str, Path], apptainer: str
) -> None:
    """Why the manifest digest is the gate of a pull, and a pinned SIF hash gates a staged file."""
    with parts.running_registry(tmp_path / "registry") as running:
        place = Place(tmp_path, running, running.push(layouts["other"], "kv/o", "v1"), apptainer)
        first = place.verify()
        shutil.rmtree(place.cache)
        time.sleep(1.1)
        second = place.verify()

    assert first["manifest_digest"] == second["manifest_digest"]
    assert first["sif_sha256"] != second["sif_sha256"]


def test_without_a_tool_the_step_says_to_run_it_where_there_is_one(place: Place) -> None:
    place.env = {"KVSTUDY_APPTAINER": "no-such-tool"}

    assert "let the rule run in a job on a node that has it" in place.verify()


HTPASSWD = "kv:$2b$05$.NqH9RmtfrUv18Rg7u1HGe94FH7sa2F1swcSXtbx6mLtGTawQCqmS\n"
"""Name `kv`, password `planted-secret`."""


def test_a_login_is_the_tools_own_and_shows_nowhere(
    tmp_path: Path, layouts: dict[str, Path], apptainer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    with parts.running_registry(tmp_path / "registry") as running:
        pushed = running.push(layouts["other"], "kv/o", "v1")
    with parts.running_registry(tmp_path / "registry", htpasswd=HTPASSWD) as running:
        place = Place(tmp_path, running, pushed, apptainer)

        refused = place.verify()
        login = {"APPTAINER_DOCKER_USERNAME": "kv", "APPTAINER_DOCKER_PASSWORD": "planted-secret"}
        place.env = {**login, "HF_TOKEN": "planted-token"}
        seen = _command_lines_during(place)
        by_environment = json.loads((tmp_path / "image.json").read_text())
        shutil.rmtree(place.cache)
        place.env = {}
        subprocess.run(
            [
                *(apptainer, "registry", "login", "--username", "kv", "--password-stdin"),
                f"docker://{running.host}",
            ],
            input=b"planted-secret",
            check=True,
        )
        by_login = place.verify()

    assert "access refused (401)" in refused
    assert f"apptainer registry login docker://{running.host}" in refused
    assert by_environment["manifest_digest"] == by_login["manifest_digest"]
    assert any(" pull " in line for line in seen)
    assert "planted" not in "".join(seen)
    kept = [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and _is_ours(p, tmp_path)]
    assert b"planted" not in b"".join(kept)


def _is_ours(path: Path, folder: Path) -> bool:
    """Files the step may have written; not the user's login, nor the registry's settings."""
    return path.relative_to(folder).parts[0] not in ("home", "registry")


def _command_lines_during(place: Place) -> list[str]:
    """Every command line on the machine while the step runs; the step must not fail."""
    seen = set()
    with place.start(place.spec()) as job:
        while job.poll() is None:
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                except OSError:
                    continue
        said = job.communicate()[1]
    assert job.returncode == 0, said
    assert "planted" not in said
    return sorted(seen)
