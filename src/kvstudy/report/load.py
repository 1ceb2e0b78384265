"""Files to the report's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvstudy.base import files, tables
from kvstudy.base.errors import DataError
from kvstudy.report.drawn import read_figures
from kvstudy.report.inputs import Inputs, published_first
from kvstudy.stats.audit import audit
from kvstudy.stats.claims import read_published
from kvstudy.stats.contrast import pairs_of
from kvstudy.stats.data import REQUEST_COLUMNS, Row, data_of


def load(spec: Mapping[str, Any], paths: Mapping[str, Any]) -> Inputs:
    """Read every table a report needs, published workloads first.

    `paths` names the files as the step's flags do: study, cells, requests, runs, contrasts,
    verdicts, published (a list), figures (a folder), hypotheses and regimes (or None).
    """
    published = read_published(paths["published"])
    read = data_of(
        tables.read(paths["cells"], tables.CELLS),
        tables.read(paths["requests"], tables.REQUESTS, REQUEST_COLUMNS),
    )
    data = replace(read, cells=published_first(read.cells, published))
    contrasts = tables.read(paths["contrasts"], tables.CONTRASTS).to_pylist()
    runs = files.read_json(paths["runs"])
    config = files.read_json(paths["study"])["config"]
    return Inputs(
        spec=spec,
        data=data,
        contrasts=published_first(contrasts, published),
        verdicts=tables.read(paths["verdicts"], tables.VERDICTS).to_pylist(),
        runs=runs,
        published=published,
        findings=audit(pairs_of(config["contrasts"], data), runs, config["arms"]),
        figures=read_figures(paths["figures"]),
        hypotheses=_optional(paths["hypotheses"]),
        regimes=_optional(paths["regimes"]),
    )


def _optional(path: Path | None) -> list[Row]:
    if path is None:
        return []
    try:
        rows: list[Row] = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error})") from error
    return rows
