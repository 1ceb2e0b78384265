rule explain_study:
    # Rival hypotheses side by side: what each predicts, what was published, what this run says.
    input:
        cells="results/{backend}/tables/cells.parquet",
        published=STUDY.published_in(workflow.basedir),
        probes=expand(
            "results/{{backend}}/pins/{engine}.probe.json",
            engine=STUDY.runnable_engines,
        ),
    output:
        hypotheses="results/{backend}/stats/hypotheses.parquet",
    log:
        "results/{backend}/logs/explain_study.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        spec=STUDY.why_spec,
        code=STUDY.code("explain", "sim", "steps.explain_study"),
    shell:
        "python -m kvstudy.steps.explain_study --spec {params.spec:q} --cells {input.cells}"
        " --published {input.published} --probes {input.probes}"
        " --out {output.hypotheses} > {log} 2>&1"


rule map_regimes:
    # Where MAX_UTILIZATION wins and where it loses, by simulation.
    output:
        regimes="results/{backend}/stats/regimes.parquet",
    log:
        "results/{backend}/logs/map_regimes.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        spec=STUDY.why_spec,
        code=STUDY.code("explain", "sim", "steps.map_regimes"),
    shell:
        "python -m kvstudy.steps.map_regimes --spec {params.spec:q}"
        " --out {output.regimes} > {log} 2>&1"
