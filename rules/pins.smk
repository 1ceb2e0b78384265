localrules:
    verify_image,
    verify_model,
    write_lock,


rule verify_image:
    # Registry digest -> pulled manifest -> image file, each link checked before a GPU is asked for.
    output:
        lock="results/{backend}/pins/{engine}.image.json",
    log:
        "results/{backend}/logs/verify_image/{engine}.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        spec=STUDY.pins_spec,
    shell:
        "python -m kvstudy.steps.verify_image --spec {params.spec:q} --out {output.lock} > {log} 2>&1"


rule verify_model:
    # Every file of the model at its pinned commit.
    output:
        lock="results/{backend}/pins/model.json",
    log:
        "results/{backend}/logs/verify_model.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        spec=STUDY.model_spec,
    shell:
        "python -m kvstudy.steps.verify_model --spec {params.spec:q} --out {output.lock} > {log} 2>&1"


rule probe_engine:
    # What is inside the image: versions, and the default that decides the pause hypothesis.
    input:
        image="results/{backend}/pins/{engine}.image.json",
    output:
        probe="results/{backend}/pins/{engine}.probe.json",
    log:
        "results/{backend}/logs/probe_engine/{engine}.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        spec=STUDY.pins_spec,
    shell:
        "python -m kvstudy.steps.probe_engine --spec {params.spec:q} --image-lock {input.image}"
        " --out {output.probe} > {log} 2>&1"


rule write_lock:
    # Everything that was resolved, in one file that is enough to run again.
    input:
        images=expand(
            "results/{{backend}}/pins/{engine}.image.json",
            engine=STUDY.runnable_engines,
        ),
        probes=expand(
            "results/{{backend}}/pins/{engine}.probe.json",
            engine=STUDY.runnable_engines,
        ),
        model="results/{backend}/pins/model.json",
    output:
        lock="results/{backend}/pins/lock.json",
    log:
        "results/{backend}/logs/write_lock.log",
    conda:
        "../envs/kvstudy.yaml"
    shell:
        "python -m kvstudy.steps.write_lock --image {input.images} --probe {input.probes}"
        " --model {input.model} --out {output.lock} > {log} 2>&1"
