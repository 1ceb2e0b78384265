localrules:
    freeze_study,


rule freeze_study:
    # The study as resolved: printed in the report, and the plan that the tables stage reads.
    output:
        study="results/{backend}/study.json",
        plan="results/{backend}/plan.json",
    log:
        "results/{backend}/logs/freeze_study.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        config=STUDY.config_spec,
        code=STUDY.code("study", "steps.freeze_study"),
    shell:
        "python -m kvstudy.steps.freeze_study --config {params.config:q}"
        " --study {output.study} --plan {output.plan} > {log} 2>&1"
