"""No secret gets into a bundle, and nothing else is taken out of it."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bundle_made import members, tabulate

from kvstudy.base import tables
from kvstudy.base.errors import DataError
from kvstudy.base.files import read_json, write_json
from kvstudy.bundle.publish import publish
from kvstudy.bundle.scrub import Scrubber
from kvstudy.bundle.verify import verify

HUB = "hf_AbCdEfGhIjKlMnOpQrStUv"
ENV = {"HF_TOKEN": "not-a-shape-but-secret!", "CI_JOB_PASSWORD": "pass word/with+odd=signs"}
TEXTS = [
    HUB,
    "nvapi-0123456789abcdefghij",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "AKIAABCDEFGHIJKLMNOP",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
]
FORMS = [
    ("Authorization: Bearer abc123def456", "abc123def456"),
    ('{"headers": {"Authorization": "Basic dXNlcjpwYXNz"}}', "dXNlcjpwYXNz"),
    ("curl -H 'authorization: token s3cr3tvalue'", "s3cr3tvalue"),
    ("trtllm-serve --api-key sekret-0042 --port 1", "sekret-0042"),
    ('["--api-key", "sekret-0042", "--port"]', "sekret-0042"),
    ("export REGISTRY_PASSWORD=hunter2hunter2", "hunter2hunter2"),
    ('"LLAMA_API_KEY": "sekret-0042"', "sekret-0042"),
    (r'"line": "{\"api_key\": \"sekret-0042\"}"', "sekret-0042"),
    ("api_key='sekret-0042', model='m'", "sekret-0042"),
    ("https://user:pa55@registry.example/v2/", "pa55"),
    ("GET https://cdn.example/x?X-Amz-Signature=deadbeef01&b=1", "deadbeef01"),
]
INNOCENT = [
    '{"max_num_tokens": 8192, "eos_token": "</s>", "retokenized_tokens": 12}',
    "KvCacheConfig(max_tokens=368640), api_key=None, secret: null",
    '"KVSTUDY_API_KEY": "***"',
    "tokens=512 key=value kv_key_heads: 8 the bearer of this letter",
    "https://nvcr.io/v2/nvidia/tensorrt-llm/release:1.2.1?a=b",
    "risk-assessment-of-a-long-hyphenated-name task-0123456789abcdefghijkl",
]


def scrubbed(text: str, environ: dict[str, str] | None = None) -> str:
    lines = text.encode().splitlines(keepends=True)
    return b"".join(line for line, _ in Scrubber(environ or {}).lines(lines)).decode()


@pytest.mark.parametrize("secret", TEXTS)
def test_what_looks_like_a_token_is_masked(secret: str) -> None:
    assert secret not in scrubbed(f"before {secret} after\n")
    assert scrubbed(f"before {secret} after") == "before *** after"


@pytest.mark.parametrize(("text", "secret"), FORMS)
def test_a_secret_in_its_usual_place_is_masked(text: str, secret: str) -> None:
    clean = scrubbed(text)
    assert secret not in clean
    assert "***" in clean


@pytest.mark.parametrize("text", INNOCENT)
def test_nothing_else_is_touched(text: str) -> None:
    assert scrubbed(text) == text


def test_values_of_the_environment_are_masked_in_every_form() -> None:
    for value in ENV.values():
        for form in (value, json.dumps(value), base64.b64encode(value.encode()).decode()):
            assert scrubbed(f"x{form}y", ENV).count("***") == 1
            assert value not in scrubbed(f"x{form}y", ENV)


def test_a_private_key_is_taken_out_whole() -> None:
    text = "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nAAAA\n-----END RSA PRIVATE KEY-----\nb\n"
    assert scrubbed(text) == "a\n***\nb\n"
    line = '{"key": "-----BEGIN PRIVATE KEY-----\\nMIIE\\n-----END PRIVATE KEY-----\\n"}'
    assert "MIIE" not in scrubbed(line)


def test_json_stays_json() -> None:
    document = {"env": {"A_TOKEN": "abcdefgh"}, "argv": ["--api-key", "abcdefgh", "--n"], "n": 1}
    masked = {"env": {"A_TOKEN": "***"}, "argv": ["--api-key", "***", "--n"], "n": 1}
    for indent in (None, 2):
        assert json.loads(scrubbed(json.dumps(document, indent=indent))) == masked


def plant(folder: Path, cell: str) -> None:
    """Secrets wherever a run might leave one."""
    secret = ENV["HF_TOKEN"]
    (attempt,) = (folder / "store" / cell).glob("*/attempt-1")
    for name in ("server.log", "telemetry.jsonl", "extra.yaml"):
        with (attempt / name).open("a", encoding="utf-8") as handle:
            handle.write(f'{{"said": "{secret} and {HUB}"}}\n')
    with (folder / "logs" / "build_tables.log").open("a", encoding="utf-8") as handle:
        handle.write(f"MY_API_KEY={secret}\n")
    run = read_json(folder / "cells" / cell / "run.json")
    run["env"]["OTHER_TOKEN"] = secret
    run["argv"] += ["--note", secret]
    write_json(folder / "cells" / cell / "run.json", run)
    study = read_json(folder / "study.json")
    study["config"]["title"] = f"a study by {HUB}"
    write_json(folder / "study.json", study)
    path = folder / "cells" / cell / "requests.parquet"
    rows = tables.read(path, tables.CLIENT_REQUESTS).to_pylist()
    rows[0]["error"] = f"server said: Authorization: Bearer {secret}"
    tables.write(path, rows, tables.CLIENT_REQUESTS)


def held(content: bytes, name: str) -> bytes:
    """A member's bytes, a table's values in the open."""
    if not name.endswith(".parquet"):
        return content
    return str(pq.read_table(pa.BufferReader(content)).to_pylist()).encode()


def test_planted_secrets_do_not_appear_in_the_bundle(made: SimpleNamespace, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made.results / "emulated", tmp_path / "copy"))
    cell = made.study.cells[0].id
    plant(folder, cell)
    tabulate(folder, made.study, made.checkout / "claims" / "made.yaml")
    out = tmp_path / "a.zip"
    report = publish(
        folder, out, checkout=made.checkout, licence="https://example.org/l", scrubber=Scrubber(ENV)
    )
    for name, content in members(out).items():
        assert HUB.encode() not in held(content, name), name
        assert ENV["HF_TOKEN"].encode() not in held(content, name), name
    assert {
        f"cells/{cell}/server.log", f"cells/{cell}/telemetry.jsonl", f"cells/{cell}/run.json",
        f"cells/{cell}/requests.parquet", "tables/requests.parquet", "tables/runs.json",
        "study.json", "logs/build_tables.log",
    } <= report.scrubbed.keys()  # fmt: skip
    checked = verify(out)
    assert [d for d in checked.differences if not d.name.endswith("check.json")] == []
    assert any("masked before publishing" in remark for remark in checked.remarks)


def test_a_secret_in_data_stops_publishing(made: SimpleNamespace, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made.results / "emulated", tmp_path / "copy"))
    cell = made.study.cells[0].id
    path = folder / "cells" / cell / "outputs.parquet"
    rows = tables.read(path, tables.OUTPUTS).to_pylist()
    rows[0]["text"] += HUB
    tables.write(path, rows, tables.OUTPUTS)
    with pytest.raises(DataError, match=f"{cell}/outputs.parquet: column text holds a secret"):
        publish(
            folder, tmp_path / "a.zip", checkout=made.checkout, licence="https://example.org/l",
            scrubber=Scrubber({}),
        )  # fmt: skip
    assert not list(tmp_path.glob("*.zip"))
