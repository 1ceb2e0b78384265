"""Every table of a bundle again, from the raw rows, by the code that the line itself runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from kvstudy.base import tables
from kvstudy.base.digest import sha256_file, sha256_json, sha256_text
from kvstudy.base.errors import DataError, KvstudyError
from kvstudy.base.files import read_json, write_json
from kvstudy.bundle.equal import differences, json_differences
from kvstudy.bundle.parquet import check_size
from kvstudy.explain.tables import HYPOTHESES, REGIMES
from kvstudy.steps import build_tables, check_cell, compare_arms, explain_study, map_regimes
from kvstudy.study.parse import parse_config
from kvstudy.study.plan import Study
from kvstudy.workload.tokens import HubTokenizer

_DIGEST = "tokenizer.digest.json"
_CELL_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
_TABLES = {
    "tables/requests.parquet": tables.REQUESTS,
    "tables/iterations.parquet": tables.ITERATIONS,
    "tables/cells.parquet": tables.CELLS,
    "stats/contrasts.parquet": tables.CONTRASTS,
    "stats/verdicts.parquet": tables.VERDICTS,
    "stats/hypotheses.parquet": HYPOTHESES,
    "stats/regimes.parquet": REGIMES,
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing of the bundle that is not what its raw rows give."""

    name: str
    what: str


class RecordedCounts:
    """The bundle's own token counts, by text, where its tokenizer is not at hand."""

    def __init__(self, requests: Path) -> None:
        rows = tables.read(requests, tables.REQUESTS, ["output_sha256", "retokenized_tokens"])
        self._counts = dict(
            zip(
                rows["output_sha256"].to_pylist(),
                rows["retokenized_tokens"].to_pylist(),
                strict=True,
            )
        )

    def count(self, texts: list[str]) -> list[int]:
        """Number of tokens of each text, as the bundle says."""
        return [self._counts.get(sha256_text(text)) or 0 for text in texts]


def counter(folder: Path, tokenizer: Path | None) -> tuple[build_tables.Counter, str | None]:
    """The tokenizer that counts, and a remark where the counts cannot be taken again."""
    expected = read_json(folder / "tokenizer" / _DIGEST)["sha256"]
    place = tokenizer or folder / "tokenizer"
    if not (place / "tokenizer.json").is_file() and tokenizer is None:
        remark = (
            "re-tokenised counts were taken from the bundle: it holds no tokenizer, and none "
            "was given by --tokenizer"
        )
        return RecordedCounts(folder / "tables" / "requests.parquet"), remark
    names = sorted(path.name for path in place.glob("*token*.json"))
    found = sha256_json({name: sha256_file(place / name) for name in names if name != _DIGEST})
    if found != expected:
        raise DataError(
            f"{place}: not the tokenizer of this bundle (found {found[:12]}, it names "
            f"{str(expected)[:12]})"
        )
    return HubTokenizer(place), None


def recompute(
    folder: Path, fresh: Path, tokenizer: Path | None, *, simulated: bool = True
) -> tuple[list[Difference], list[str], list[str]]:
    """(differences, names of what was recomputed, remarks) of an unpacked bundle.

    `fresh` takes what is computed again. `simulated`: the hypotheses and the regime map too.
    """
    for path in sorted(folder.rglob("*.parquet")):
        check_size(path)
    plan = read_json(folder / "plan.json")
    for cell in plan["cells"]:
        if not _CELL_ID.fullmatch(cell["cell_id"]):
            raise DataError(f"plan.json: cell id {cell['cell_id']!r} cannot name a folder")
    counts, remark = counter(folder, tokenizer)
    collector, runs = build_tables.collect(plan, counts, folder / "cells", folder / "predicted")
    (fresh / "tables").mkdir(parents=True)
    (fresh / "stats").mkdir()
    collector.write(
        *(fresh / "tables" / f"{name}.parquet" for name in ("requests", "iterations", "cells"))
    )
    write_json(fresh / "tables" / "runs.json", runs)
    study = Study(parse_config(read_json(folder / "study.json")["config"]))
    _statistics(folder, fresh, study)
    if simulated:
        _simulated(folder, fresh, study)
    found = [*_compared(folder, fresh), *_checks(folder, study, plan)]
    names = sorted(path.relative_to(fresh).as_posix() for path in fresh.rglob("*.*"))
    return found, [*names, "cells/*/check.json"], [remark] if remark else []


def _statistics(folder: Path, fresh: Path, study: Study) -> None:
    """Contrasts and verdicts from the recomputed tables and the bundle's published numbers."""
    compare_arms.main(
        [
            *("--spec", study.stats_spec()),
            *("--cells", str(fresh / "tables" / "cells.parquet")),
            *("--requests", str(fresh / "tables" / "requests.parquet")),
            *("--runs", str(fresh / "tables" / "runs.json")),
            *("--study", str(folder / "study.json")),
            *("--published", *_published(folder)),
            *("--contrasts", str(fresh / "stats" / "contrasts.parquet")),
            *("--verdicts", str(fresh / "stats" / "verdicts.parquet")),
        ]
    )


def _simulated(folder: Path, fresh: Path, study: Study) -> None:
    """Hypotheses and regime map, where the bundle holds them."""
    if (folder / "stats" / "hypotheses.parquet").is_file():
        probes = [folder / "pins" / f"{engine}.probe.json" for engine in study.runnable_engines]
        explain_study.main(
            [
                *("--spec", study.why_spec()),
                *("--cells", str(fresh / "tables" / "cells.parquet")),
                *("--published", *_published(folder)),
                *("--probes", *map(str, probes)),
                *("--out", str(fresh / "stats" / "hypotheses.parquet")),
            ]
        )
    if (folder / "stats" / "regimes.parquet").is_file():
        out = str(fresh / "stats" / "regimes.parquet")
        map_regimes.main(["--spec", study.why_spec(), "--out", out])


def _published(folder: Path) -> list[str]:
    return [str(path) for path in sorted((folder / "published").glob("*"))]


def _compared(folder: Path, fresh: Path) -> Iterator[Difference]:
    for name, schema in _TABLES.items():
        if (fresh / name).is_file():
            sides = [tables.read(place / name, schema) for place in (folder, fresh)]
            for line in differences(*sides):
                yield Difference(name, line)
    name = "tables/runs.json"
    for line in json_differences(read_json(folder / name), read_json(fresh / name)):
        yield Difference(name, line)


def _checks(folder: Path, study: Study, plan: dict[str, Any]) -> Iterator[Difference]:
    """Reason codes again, from each cell's own rows."""
    for cell in plan["cells"]:
        if not cell["runnable"]:
            continue
        cell_id, place = cell["cell_id"], folder / "cells" / cell["cell_id"]
        spec = {"values": study.cell_values(study.cell(cell_id))}
        codes = check_cell.reasons_of(place, spec)
        said = read_json(place / "check.json")["reasons"]
        if sorted(codes) != sorted(said):
            what = f"says {', '.join(said) or 'valid'}, its rows say {', '.join(codes) or 'valid'}"
            yield Difference(f"cells/{cell_id}/check.json", what)


_FOREIGN_FAULTS = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    OSError,
    pa.ArrowException,
    yaml.YAMLError,
)
"""What documents of another shape than ours may raise in code that trusts its own files."""


def guarded(work: Callable[[], Any], name: str) -> tuple[Any, Difference | None]:
    """The result of recomputing foreign files, or what stopped it, never a traceback."""
    try:
        return work(), None
    except KvstudyError as error:
        return None, Difference(name, f"cannot be recomputed: {error}")
    except _FOREIGN_FAULTS as error:
        said = f"{type(error).__name__}: {error}"
        return None, Difference(name, f"cannot be recomputed: {said}")
