"""Fixtures of the Slurm tests: one cluster and one finished study for all of them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "slurm"))
import slurm_site  # noqa: E402 - lies beside the script that it calls


@pytest.fixture(scope="session")
def slurm() -> Iterator[slurm_site.Site]:
    """A cluster: the user's where KVSTUDY_SLURM_PROFILE names a profile, else one of our own."""
    profile = os.environ.get("KVSTUDY_SLURM_PROFILE")
    if profile:
        yield slurm_site.Site(None, Path(profile).resolve())
        return
    reason = slurm_site.missing()
    if reason:
        pytest.skip(reason)
    # Not pytest's own folder: the database runs as another user, who may not look in there.
    folder = Path(tempfile.mkdtemp(prefix="kvstudy-slurm-"))
    try:
        accounting = slurm_site.missing(accounting=True) is None
        slurm_site.script(folder, "up", accounting=accounting)
        yield slurm_site.Site(folder, slurm_site.ROOT / "profiles" / "slurm", accounting)
    finally:
        slurm_site.script(folder, "down")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def slurm_folder(slurm: slurm_site.Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all nodes see; working folders of tests are made in it."""
    if slurm.folder is not None:
        return tmp_path_factory.mktemp("shared")
    default = slurm_site.ROOT / "results" / f"slurm-tests-{os.getpid()}"
    folder = Path(os.environ.get("KVSTUDY_SLURM_FOLDER", default))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def slurm_study(slurm: slurm_site.Site, slurm_folder: Path) -> slurm_site.Workflow:
    """The tiny study after one complete run on the cluster."""
    folder = slurm_folder / "study"
    folder.mkdir()
    workflow = slurm_site.Workflow(folder, slurm)
    workflow.run()
    return workflow
