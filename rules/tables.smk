rule build_tables:
    # Every cell and prediction in tidy tables; texts are re-tokenised here, after the run.
    input:
        plan="results/{backend}/plan.json",
        tokenizer="results/{backend}/tokenizer/tokenizer.digest.json",
        cells=expand(
            "results/{{backend}}/cells/{cell}/{file}",
            cell=STUDY.runnable_ids,
            file=[
                "requests.parquet",
                "outputs.parquet",
                "iterations.parquet",
                "run.json",
                "check.json",
            ],
        ),
        predicted=expand(
            "results/{{backend}}/predicted/{cell}/{file}",
            cell=STUDY.cell_ids,
            file=["requests.parquet", "iterations.parquet", "run.json"],
        ),
    output:
        requests="results/{backend}/tables/requests.parquet",
        iterations="results/{backend}/tables/iterations.parquet",
        cells="results/{backend}/tables/cells.parquet",
        runs="results/{backend}/tables/runs.json",
    log:
        "results/{backend}/logs/build_tables.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        code=STUDY.code("metrics", "base.tables", "steps.build_tables"),
    shell:
        "python -m kvstudy.steps.build_tables --plan {input.plan} --tokenizer {input.tokenizer}"
        " --cells-dir results/{wildcards.backend}/cells"
        " --predicted-dir results/{wildcards.backend}/predicted"
        " --requests {output.requests} --iterations {output.iterations}"
        " --cells {output.cells} --runs {output.runs} > {log} 2>&1"
