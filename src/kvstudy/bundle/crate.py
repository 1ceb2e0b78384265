"""The bundle as a Workflow Run RO-Crate: what was run, by which workflow, from and to what.

Profiles: RO-Crate 1.1, Workflow RO-Crate 1.0, Process Run Crate 0.5, Workflow Run Crate 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

Entity = dict[str, Any]

CONTEXT = [
    "https://w3id.org/ro/crate/1.1/context",
    # The one term of the Workflow Run vocabulary in use, so that no second context is fetched.
    {"sha256": "https://w3id.org/ro/terms/workflow-run#sha256"},
]
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
WORKFLOW, README = "workflow/Snakefile", "README.md"
_LANGUAGE = "https://w3id.org/workflowhub/workflow-ro-crate#snakemake"
_AUTHORS = "#kvstudy-authors"
_KINDS = {
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".parquet": "application/vnd.apache.parquet",
    ".csv": "text/csv",
    ".svg": "image/svg+xml",
    ".html": "text/html",
    ".md": "text/markdown",
    ".yaml": "application/yaml",
}
_INPUTS = ("study.json", "pins/lock.json", "published/", "workloads/", "tokenizer/")
_ABOUT = ("workflow/", "bundle.json", README)
_TRACES = ("logs/", "launch_commands.json", "environment.json")


@dataclass(frozen=True, slots=True)
class Run:
    """What the metadata says of the run."""

    study: str
    title: str
    backend: str
    commits: tuple[str, ...]
    started_at: str | None
    ended_at: str | None


def metadata(run: Run, members: Mapping[str, tuple[int, str]], licence: str) -> Entity:
    """The whole `ro-crate-metadata.json`.

    `members` are the bundle's other files, each with its size in bytes and its SHA-256.
    """
    files = [_file(name, *facts, run) for name, facts in sorted(members.items())]
    graph = [
        {
            "@id": "ro-crate-metadata.json",
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": [
                {"@id": "https://w3id.org/ro/crate/1.1"},
                {"@id": "https://w3id.org/workflowhub/workflow-ro-crate/1.0"},
            ],
        },
        _root(run, members, licence),
        *_profiles(),
        *_people_and_tools(licence),
        _action(run, set(members)),
        *files,
    ]
    return {"@context": CONTEXT, "@graph": graph}


def identifier(name: str) -> str:
    """A file's `@id`: its path, as a URI."""
    return quote(name)


def _refs(names: Iterable[str]) -> list[Entity]:
    return [{"@id": identifier(name)} for name in sorted(names)]


def _root(run: Run, names: Iterable[str], licence: str) -> Entity:
    return {
        "@id": "./",
        "@type": "Dataset",
        "name": f"{run.title} ({run.backend})",
        "description": (
            f"Results of the study {run.study} on the {run.backend} backend: report, tables, "
            "statistics, figures, raw rows per request, telemetry, logs, configuration and pins. "
            "checksums.json holds the SHA-256 of every file; kvstudy verify recomputes the tables."
        ),
        "datePublished": run.ended_at or "1970-01-01T00:00:00+00:00",
        "license": {"@id": licence},
        "author": {"@id": _AUTHORS},
        "publisher": {"@id": _AUTHORS},
        "conformsTo": [{"@id": profile} for profile in PROFILES],
        "hasPart": _refs(names),
        "mainEntity": {"@id": WORKFLOW},
        "mentions": {"@id": "#run"},
    }


def _profiles() -> list[Entity]:
    return [
        {"@id": profile, "@type": "CreativeWork", "name": name, "version": version}
        for profile, (name, version) in PROFILES.items()
    ]


def _people_and_tools(licence: str) -> list[Entity]:
    return [
        {
            "@id": licence,
            "@type": "CreativeWork",
            "name": licence.rstrip("/").rpartition("/")[2],
            "description": "Licence of the files of this bundle.",
        },
        {
            "@id": _AUTHORS,
            "@type": "Organization",
            "name": "The kvstudy authors",
        },
        {
            "@id": _LANGUAGE,
            "@type": "ComputerLanguage",
            "name": "Snakemake",
            "identifier": {"@id": "https://snakemake.github.io"},
            "url": {"@id": "https://snakemake.github.io"},
        },
    ]


def _action(run: Run, names: set[str]) -> Entity:
    inputs = {name for name in names if name.startswith(_INPUTS)}
    others = {name for name in names if name.startswith((*_TRACES, *_ABOUT))}
    action: Entity = {
        "@id": "#run",
        "@type": "CreateAction",
        "name": f"Run of the study {run.study} ({run.backend})",
        "description": (
            "One Snakemake run of the study: fresh server for each cell, closed-loop client, "
            "telemetry, tables, statistics and report."
        ),
        "instrument": {"@id": WORKFLOW},
        "agent": {"@id": _AUTHORS},
        "object": _refs(inputs),
        "result": _refs(names - inputs - others),
        "actionStatus": "http://schema.org/CompletedActionStatus",
    }
    if run.started_at and run.ended_at:
        action |= {"startTime": run.started_at, "endTime": run.ended_at}
    return action


def _file(name: str, size: int, sha256: str, run: Run) -> Entity:
    entity: Entity = {
        "@id": identifier(name),
        "@type": "File",
        "name": name,
        "contentSize": str(size),
        "sha256": sha256,
        "encodingFormat": _KINDS.get(PurePosixPath(name).suffix, "text/plain"),
    }
    if name == WORKFLOW:
        return entity | {
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
            "name": "kvstudy workflow",
            "description": "config -> plan -> pins -> workload -> cells -> tables -> report",
            "version": ", ".join(run.commits) or "not in a checkout",
            "programmingLanguage": {"@id": _LANGUAGE},
            "creator": {"@id": _AUTHORS},
        }
    if name == README:
        return entity | {"about": {"@id": "./"}}
    return entity | ({"about": {"@id": "#run"}} if name.startswith(_TRACES) else {})
