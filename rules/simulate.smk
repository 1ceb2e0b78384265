localrules:
    simulate_cell,


rule simulate_cell:
    # The same cell in virtual time: what the rules of the scheduler predict.
    input:
        workload=STUDY.of("results/{backend}/workloads/{workload}.parquet"),
    output:
        requests="results/{backend}/predicted/{cell}/requests.parquet",
        iterations="results/{backend}/predicted/{cell}/iterations.parquet",
        run="results/{backend}/predicted/{cell}/run.json",
    log:
        "results/{backend}/logs/simulate_cell/{cell}.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        spec=STUDY.prediction_spec,
        code=STUDY.code("sim", "steps.simulate_cell"),
    shell:
        "python -m kvstudy.steps.simulate_cell --spec {params.spec:q}"
        " --workload {input.workload} --requests {output.requests}"
        " --iterations {output.iterations} --run {output.run} > {log} 2>&1"
