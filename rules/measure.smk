localrules:
    check_cell,


rule measure_allocation:
    # One allocation on one GPU: its arms and repeats in the order A B ... B A, a fresh server for
    # each cell. Results go to the cell store, which no rule deletes; the output only points there.
    input:
        workload=STUDY.of("results/{backend}/workloads/{workload}.parquet"),
        tokenizer="results/{backend}/tokenizer/tokenizer.digest.json",
        image=STUDY.of("results/{backend}/pins/{engine}.image.json"),
        probe=STUDY.of("results/{backend}/pins/{engine}.probe.json"),
        model="results/{backend}/pins/model.json",
    output:
        manifest="results/{backend}/allocations/{allocation}.json",
    log:
        "results/{backend}/logs/measure_allocation/{allocation}.log",
    conda:
        "../envs/kvstudy.yaml"
    resources:
        # From the plan's estimate, with a margin; a profile may set another limit.
        runtime=STUDY.minutes,
    params:
        spec=STUDY.allocation_spec,
        store="results/{backend}/store",
        progress="results/{backend}/progress/{allocation}.json",
    shell:
        "python -m kvstudy.steps.measure_allocation --spec {params.spec:q}"
        " --workload {input.workload} --tokenizer {input.tokenizer}"
        " --image {input.image} --probe {input.probe} --model {input.model}"
        " --store {params.store} --progress {params.progress}"
        " --manifest {output.manifest} > {log} 2>&1"


rule check_cell:
    # One cell out of the store, every file against its checksum, and audited on its own rows.
    input:
        manifest=STUDY.of("results/{backend}/allocations/{allocation}.json"),
    output:
        requests="results/{backend}/cells/{cell}/requests.parquet",
        outputs="results/{backend}/cells/{cell}/outputs.parquet",
        iterations="results/{backend}/cells/{cell}/iterations.parquet",
        run="results/{backend}/cells/{cell}/run.json",
        check="results/{backend}/cells/{cell}/check.json",
    log:
        "results/{backend}/logs/check_cell/{cell}.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        spec=STUDY.cell_spec,
        store="results/{backend}/store",
        code=STUDY.code("metrics.audit", "metrics.per_cell", "steps.check_cell"),
    shell:
        "python -m kvstudy.steps.check_cell --spec {params.spec:q} --store {params.store}"
        " --manifest {input.manifest} --check {output.check} > {log} 2>&1"
