# The table of contents: config -> plan -> pins -> workload -> cells -> tables -> stats -> report.
import shlex
import sys
from pathlib import Path

from snakemake.utils import min_version

from kvstudy.study.plan import study_from

min_version("9.10")


configfile: "config.yaml"


STUDY = study_from(config, workflow.configfiles)  # strict; every problem shown at once
for notice in STUDY.notices():
    print(f"notice: {notice}", file=sys.stderr)


# Steps run the package of this checkout, whatever environment they are given.
shell.prefix(f"export PYTHONPATH={shlex.quote(str(Path(workflow.basedir, 'src')))}; ")


wildcard_constraints:
    backend=STUDY.backend,
    cell=r"[A-Za-z0-9_.-]+",
    allocation=r"[A-Za-z0-9_.-]+",
    engine=r"[A-Za-z0-9_.-]+",
    workload=r"[A-Za-z0-9_.-]+",


include: "rules/study.smk"
include: "rules/pins.smk"
include: "rules/workload.smk"
include: "rules/measure.smk"
include: "rules/simulate.smk"
include: "rules/tables.smk"
include: "rules/explain.smk"
include: "rules/report.smk"


rule all:
    default_target: True
    input:
        expand(
            "results/{backend}/report/{page}",
            backend=STUDY.backend,
            page=["index.html", "report.md", "answer-16827.md"],
        ),
        expand("results/{backend}/pins/lock.json", backend=STUDY.backend),
