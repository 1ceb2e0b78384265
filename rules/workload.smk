localrules:
    prepare_tokenizer,


rule prepare_tokenizer:
    # The model's own tokenizer, or the small one that is shipped for the emulated backend.
    input:
        model="results/{backend}/pins/model.json",
    output:
        digest="results/{backend}/tokenizer/tokenizer.digest.json",
    log:
        "results/{backend}/logs/prepare_tokenizer.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        spec=STUDY.tokenizer_spec,
    shell:
        "python -m kvstudy.steps.prepare_tokenizer --spec {params.spec:q}"
        " --model-lock {input.model} --out {output.digest} > {log} 2>&1"


rule make_workload:
    # A fixed request set: exact token counts, the same bytes on every machine.
    input:
        tokenizer="results/{backend}/tokenizer/tokenizer.digest.json",
    output:
        requests="results/{backend}/workloads/{workload}.parquet",
        manifest="results/{backend}/workloads/{workload}.json",
    log:
        "results/{backend}/logs/make_workload/{workload}.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        spec=STUDY.workload_spec,
    shell:
        "python -m kvstudy.steps.make_workload --spec {params.spec:q}"
        " --tokenizer {input.tokenizer} --requests {output.requests}"
        " --manifest {output.manifest} > {log} 2>&1"
