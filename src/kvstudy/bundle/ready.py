"""Ready mappings of foreign raw results; `kvstudy import --show-map NAME` prints one to edit."""

from __future__ import annotations

READY = {
    "issue-rows": """\
# Per-request rows as JSON, of the kind that the issue's bundle holds: send time, first and last
# chunk time, chunk count, and the text or its re-tokenised count. No usage and no finish_reason.
# Field names differ from client to client; the first one that a row has is taken.
# Put your own names first, or replace a list by one name.
rows: {layout: objects, at: ""}
columns:
  request_id:         {field: [request_id, id, index, idx]}
  send_ns:            {field: [send_time, t_send, sent_at, start_time, start], unit: s}
  first_chunk_ns:     {field: [first_chunk_time, t_first, first_token_time, first_chunk], unit: s}
  last_chunk_ns:      {field: [last_chunk_time, t_last, last_token_time, last_chunk, end], unit: s}
  chunk_count:        {field: [n_chunks, chunk_count, num_chunks, chunks]}
  retokenized_tokens: {field: [n_out, output_tokens, retokenized_tokens, completion_tokens]}
  text:               {field: [text, generated_text, output_text, output]}
  error:              {field: [error, err]}
  success:            {field: [ok, success]}
# What the workload fixed; the rows do not say it:
# values: {planned_input_tokens: 16384, planned_output_tokens: 512, output_cap_tokens: 512}
""",
    "vllm-bench": """\
# `vllm bench serve --save-result --save-detailed`: one JSON object, one list for each field.
# Chunk times follow from start_times, ttfts and itls. Chunks with empty text are counted too.
rows: {layout: columns, at: ""}
columns:
  send_ns:             {field: start_times, unit: s}
  ttft_ns:             {field: ttfts, unit: s}
  gaps_ns:             {field: itls, unit: s}
  server_input_tokens: {field: input_lens}
  usage_tokens:        {field: output_lens}
  text:                {field: generated_texts}
  error:               {field: errors}
# For versions that save no start_times:
window_s: {field: duration}
# values: {planned_input_tokens: 128, planned_output_tokens: 128, output_cap_tokens: 128}
""",
    "aiperf": """\
# `aiperf profile --export-level records`: profile_export.jsonl, one record a line.
# input_sequence_length is what aiperf counted. output_sequence_length is the server's count only
# with --use-server-token-count; without it aiperf counted the text, so it stands as re-tokenised.
rows: {layout: lines, keep: {metadata.benchmark_phase: profiling}}
columns:
  request_id:         {field: metadata.x_request_id}
  send_ns:            {field: metadata.request_start_ns, unit: ns}
  end_ns:             {field: metadata.request_end_ns, unit: ns}
  ttft_ns:            {field: metrics.time_to_first_token.value, unit: ms}
  e2e_ns:             {field: metrics.request_latency.value, unit: ms}
  gaps_ns:            {field: metrics.inter_chunk_latency.value, unit: ms}
  retokenized_tokens: {field: metrics.output_sequence_length.value}
  cancelled:          {field: metadata.was_cancelled}
  error:              {field: error}
# values: {planned_input_tokens: 128, planned_output_tokens: 128, output_cap_tokens: 128}
""",
}
