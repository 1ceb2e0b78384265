"""A real emulator in a subprocess, a tiny tokenizer, and a bare closed-loop client."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstudy.base import tables
from kvstudy.base.digest import sha256_token_ids

READY_S = 30.0


def train_tokenizer(folder: Path) -> Path:
    """A byte-level BPE of some 1,000 tokens, trained on made-up words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    rng = random.Random(7)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(800)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=["<|bos|>", "<|eos|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = (" ".join(rng.choices(words, k=12)) for _ in range(2000))
    tokenizer.train_from_iterator(lines, trainer=trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@dataclass(frozen=True)
class Load:
    """A phase: prompts in submission order, their caps and true lengths, and the lanes."""

    name: str
    prompts: list[list[int]]
    caps: list[int]
    lengths: list[int]
    concurrency: int

    @staticmethod
    def equal(name: str, count: int, tokens: int, output: int, concurrency: int) -> Load:
        """`count` requests of the same size, each with its own prompt."""
        first = {"warmup": 10_000, "measured": 20_000}.get(name, 30_000)
        prompts = [[(first + i * 31 + j) % 900 + 20 for j in range(tokens)] for i in range(count)]
        for index, prompt in enumerate(prompts):
            prompt[0], prompt[1] = 20 + index % 900, 20 + (first + index // 900) % 900
        return Load(name, prompts, [output] * count, [output] * count, concurrency)


def write_expected(path: Path, loads: Sequence[Load]) -> Path:
    """The workload file of these phases."""
    rows = [
        {
            "phase": load.name,
            "position": position,
            "prompt_sha256": sha256_token_ids(prompt),
            "output_tokens": length,
            "concurrency": load.concurrency,
        }
        for load in loads
        for position, (prompt, length) in enumerate(zip(load.prompts, load.lengths, strict=True))
    ]
    tables.write(path, rows, tables.EXPECTED)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """A running emulator."""

    process: subprocess.Popen[bytes]
    port: int
    log_path: Path
    key: str | None = None

    @property
    def log(self) -> str:
        """What it printed."""
        return self.log_path.read_text(errors="replace")

    def get(self, path: str, *, key: str | None = None) -> tuple[int, bytes]:
        """Status and body of a GET."""
        return self._open(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}"), key)

    def get_json(self, path: str) -> Any:
        """The JSON of a GET that must succeed."""
        status, body = self.get(path)
        assert status == 200, (status, body)
        return json.loads(body)

    def post(
        self, body: Any, *, key: str | None = None, timeout_s: float = 20
    ) -> tuple[int, bytes]:
        """Status and body of a completion."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        return self._open(urllib.request.Request(url, data=data), key, timeout_s)

    def _open(
        self, request: urllib.request.Request, key: str | None, timeout_s: float = 20
    ) -> tuple[int, bytes]:
        key = key or self.key
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=5)


@contextmanager
def serving(
    model: Path, folder: Path, *arguments: str, env: dict[str, str] | None = None, wait: bool = True
) -> Iterator[Server]:
    """An emulator for this model folder; it is killed at the end if it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    log_path = folder / "server.log"
    code = "import sys; from kvstudy.emulator.command import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "serve", str(model), "--port", str(port), *arguments]
    environment = {k: v for k, v in os.environ.items() if k != "KVSTUDY_API_KEY"} | (env or {})
    with log_path.open("wb") as log:
        process = subprocess.Popen(argv, stderr=log, stdout=log, env=environment)
    server = Server(process, port, log_path, (env or {}).get("KVSTUDY_API_KEY"))
    try:
        if wait:
            _wait_until_ready(server)
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _wait_until_ready(server: Server) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if server.process.poll() is not None:
            raise AssertionError(f"the server ended: {server.log}")
        try:
            if server.get("/health")[0] == 200:
                return
        except OSError:
            time.sleep(0.02)
    raise AssertionError(f"not ready: {server.log}")


@dataclass
class Reply:
    """What a stream brought."""

    position: int
    frames: list[dict[str, Any]] = field(default_factory=list)
    is_done: bool = False
    raw: bytes = b""

    @property
    def text(self) -> str:
        """All chunks joined."""
        return "".join(f["choices"][0]["text"] for f in self.frames if f["choices"])

    @property
    def chunks(self) -> int:
        """Frames that carry a choice."""
        return sum(1 for f in self.frames if f["choices"])


def request_bytes(port: int, body: dict[str, Any], key: str | None = None) -> bytes:
    payload = json.dumps(body, separators=(",", ":")).encode()
    auth = f"Authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{auth}"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


class Connection:
    """One keep-alive connection that reads chunked event streams."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def stream(self, body: dict[str, Any], position: int = 0, *, parse: bool = True) -> Reply:
        """Send a request and read its stream to the end."""
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writer.write(request_bytes(self.port, body))
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n")[0], head
        reply = Reply(position)
        parts = []
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            parts.append(await self._reader.readexactly(size))
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        reply.raw = b"".join(parts)
        reply.is_done = reply.raw.endswith(b"data: [DONE]\n\n")
        if parse:
            events = reply.raw.split(b"\n\n")[:-1]
            reply.frames = [json.loads(e[6:]) for e in events if e != b"data: [DONE]"]
        return reply

    def close(self) -> None:
        """Close it."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


async def drive(port: int, load: Load, *, model: str, parse: bool = True) -> list[Reply]:
    """The closed loop: each lane sends the next prompt in order when its last one has ended."""
    order = itertools.count()

    async def lane() -> list[Reply]:
        connection = Connection(port)
        replies = []
        while (position := next(order)) < len(load.prompts):
            body = {
                "model": model,
                "prompt": load.prompts[position],
                "max_tokens": load.caps[position],
                "stream": True,
                "ignore_eos": True,
                "temperature": 0,
                "stream_options": {"include_usage": True},
            }
            replies.append(await connection.stream(body, position, parse=parse))
        connection.close()
        return replies

    lanes = await asyncio.gather(*(lane() for _ in range(load.concurrency)))
    return sorted((r for replies in lanes for r in replies), key=lambda reply: reply.position)
