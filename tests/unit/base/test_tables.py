"""The table contract: what is written is what is read, and nothing else gets in."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvstudy.base import tables
from kvstudy.base.errors import DataError


def test_every_table_has_distinct_columns_with_a_meaning() -> None:
    for table in tables.ALL:
        assert len(set(table.names)) == len(table.names)
        assert all(column.meaning for column in table.columns)


def test_design_columns_of_requests_are_there_in_the_contract_order() -> None:
    """The columns that other tools call by name (listed by hand from the contract)."""
    text = """
        cell_id source study engine engine_version arm workload concurrency repeat request_id
        submit_order lane scheduled_ns send_ns first_byte_ns first_chunk_ns last_chunk_ns end_ns
        chunk_ns chunk_count empty_chunk_count planned_input_tokens server_input_tokens
        cached_tokens output_cap_tokens retokenized_tokens usage_tokens finish_reason outcome
        http_status error output_sha256 ttft_ns tpot_ns tpot_chunks_ns e2e_ns max_gap_ns
        stall_count
    """
    contract = text.split()
    own = [name for name in tables.REQUESTS.names if name in contract]

    assert own == contract


def test_rows_come_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "outputs.parquet"
    tables.write(path, [{"request_id": "a", "text": "b"}], tables.OUTPUTS)

    assert tables.read(path, tables.OUTPUTS).to_pylist() == [{"request_id": "a", "text": "b"}]
    assert pq.read_schema(path).metadata[b"kvstudy.table_version"] == b"1"


@pytest.mark.parametrize(
    "row",
    [
        {"request_id": "a"},
        {"request_id": "a", "text": "b", "more": 1},
        {"request_id": None, "text": "b"},
        {"request_id": "a", "text": 7},
    ],
    ids=["missing", "extra", "null", "type"],
)
def test_a_wrong_row_writes_no_file(tmp_path: Path, row: dict[str, object]) -> None:
    path = tmp_path / "outputs.parquet"
    with pytest.raises(DataError):
        tables.write(path, [row], tables.OUTPUTS)

    assert list(tmp_path.iterdir()) == []


def test_reading_names_the_file_and_what_is_wrong(tmp_path: Path) -> None:
    missing, damaged, foreign = (tmp_path / name for name in ("missing", "damaged", "foreign"))
    damaged.write_bytes(b"PAR1 nothing of the kind")
    pq.write_table(pa.table({"request_id": ["a"], "text": ["b"]}), foreign)

    for path, words in ((missing, "no such file"), (damaged, "Parquet"), (foreign, "outputs")):
        with pytest.raises(DataError, match=words) as error:
            tables.read(path, tables.OUTPUTS)
        assert str(path) in str(error.value)
