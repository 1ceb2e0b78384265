localrules:
    compare_arms,
    draw_figures,
    render_report,


rule compare_arms:
    # Contrasts with intervals, and a verdict for each published number.
    input:
        cells="results/{backend}/tables/cells.parquet",
        requests="results/{backend}/tables/requests.parquet",
        runs="results/{backend}/tables/runs.json",
        study="results/{backend}/study.json",
        published=STUDY.published_in(workflow.basedir),
    output:
        contrasts=report(
            "results/{backend}/stats/contrasts.parquet",
            caption="../report/captions/contrasts.rst",
            category="Statistics",
        ),
        verdicts=report(
            "results/{backend}/stats/verdicts.parquet",
            caption="../report/captions/verdicts.rst",
            category="Statistics",
        ),
    log:
        "results/{backend}/logs/compare_arms.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        spec=STUDY.stats_spec,
        code=STUDY.code("stats", "metrics", "steps.compare_arms"),
    shell:
        "python -m kvstudy.steps.compare_arms --spec {params.spec:q} --cells {input.cells}"
        " --requests {input.requests} --published {input.published}"
        " --runs {input.runs} --study {input.study}"
        " --contrasts {output.contrasts} --verdicts {output.verdicts} > {log} 2>&1"


rule draw_figures:
    # One table in, one SVG out, its data beside it.
    input:
        cells="results/{backend}/tables/cells.parquet",
        requests="results/{backend}/tables/requests.parquet",
        iterations="results/{backend}/tables/iterations.parquet",
        contrasts="results/{backend}/stats/contrasts.parquet",
        hypotheses="results/{backend}/stats/hypotheses.parquet",
        regimes="results/{backend}/stats/regimes.parquet",
        published=STUDY.published_in(workflow.basedir),
    output:
        directory("results/{backend}/figures"),
    log:
        "results/{backend}/logs/draw_figures.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        code=STUDY.code("report", "explain.tables", "steps.draw_figures"),
    shell:
        "python -m kvstudy.steps.draw_figures --cells {input.cells} --requests {input.requests}"
        " --iterations {input.iterations} --contrasts {input.contrasts}"
        " --hypotheses {input.hypotheses} --regimes {input.regimes}"
        " --published {input.published} --out {output} > {log} 2>&1"


rule render_report:
    # The page and the Markdown, from the same numbers.
    input:
        study="results/{backend}/study.json",
        cells="results/{backend}/tables/cells.parquet",
        requests="results/{backend}/tables/requests.parquet",
        runs="results/{backend}/tables/runs.json",
        contrasts="results/{backend}/stats/contrasts.parquet",
        verdicts="results/{backend}/stats/verdicts.parquet",
        figures="results/{backend}/figures",
        hypotheses="results/{backend}/stats/hypotheses.parquet",
        regimes="results/{backend}/stats/regimes.parquet",
        published=STUDY.published_in(workflow.basedir),
        templates=f"{workflow.basedir}/report/templates",
    output:
        html=report(
            "results/{backend}/report/index.html",
            caption="../report/captions/report.rst",
            category="Report",
        ),
        markdown=report(
            "results/{backend}/report/report.md",
            caption="../report/captions/markdown.rst",
            category="Report",
        ),
    log:
        "results/{backend}/logs/render_report.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        spec=STUDY.report_spec,
        code=STUDY.code("report", "metrics.cards", "steps.render_report"),
    shell:
        "python -m kvstudy.steps.render_report --spec {params.spec:q} --study {input.study}"
        " --cells {input.cells} --requests {input.requests} --runs {input.runs}"
        " --contrasts {input.contrasts} --verdicts {input.verdicts} --figures {input.figures}"
        " --hypotheses {input.hypotheses} --regimes {input.regimes}"
        " --published {input.published} --templates {input.templates} --html {output.html} --markdown {output.markdown}"
        " > {log} 2>&1"


rule write_answer:
    # The reply to the report's three questions, ready to paste.
    input:
        hypotheses="results/{backend}/stats/hypotheses.parquet",
        regimes="results/{backend}/stats/regimes.parquet",
        cells="results/{backend}/tables/cells.parquet",
        verdicts="results/{backend}/stats/verdicts.parquet",
        templates=f"{workflow.basedir}/report/templates",
    output:
        answer="results/{backend}/report/answer-16827.md",
    log:
        "results/{backend}/logs/write_answer.log",
    conda:
        "../envs/kvstudy.yaml"
    params:
        code=STUDY.code(
            "report", "explain", "telemetry.knowledge", "steps.write_answer"
        ),
    shell:
        "python -m kvstudy.steps.write_answer --hypotheses {input.hypotheses}"
        " --regimes {input.regimes} --cells {input.cells} --verdicts {input.verdicts}"
        " --templates {input.templates} --out {output.answer} > {log} 2>&1"
