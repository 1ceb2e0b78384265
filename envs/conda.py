"""Write envs/kvstudy.yaml: the direct dependencies at the versions of requirements.lock."""

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEAD = """\
# For `snakemake --sdm conda`: the environment of every step, at the versions of
# requirements.lock. The package itself comes from the checkout. Written by envs/lock.sh.
name: kvstudy
channels:
  - conda-forge
dependencies:
  - python=3.12
  - pip
  - pip:
"""


def _plain(name: str) -> str:
    """A package name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def text() -> str:
    """The environment file."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    lock = (HERE / "requirements.lock").read_text()
    locked = {
        _plain(name): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE)
    }
    names = [re.split(r"[<>=!~ ;\[]", entry)[0] for entry in project["dependencies"]]
    lines = [f"      - {name}=={locked[_plain(name)]}\n" for name in names]
    return HEAD + "".join(lines)


if __name__ == "__main__":
    (HERE / "kvstudy.yaml").write_text(text())
