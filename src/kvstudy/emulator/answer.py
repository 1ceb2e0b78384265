"""One request on its way: the engine puts tokens in, the connection takes bytes out."""

from __future__ import annotations

import asyncio

from kvstudy.emulator.expected import Expected
from kvstudy.emulator.frames import Frames
from kvstudy.emulator.words import Choice, Vocabulary
from kvstudy.sim.request import SimRequest


class Answer(SimRequest):
    """A request of the simulator core that also holds its unsent bytes.

    `emit` is called once per token, `take` awaits what has come since. Several tokens are taken at
    once only if the connection did not get its turn between them.
    """

    __slots__ = (
        "_choice",
        "_frames",
        "_parts",
        "_plain",
        "_sent",
        "_stream",
        "_unsent",
        "_vocabulary",
        "_waiter",
        "arrived_ns",
        "expected",
        "first_iteration",
        "is_closed",
        "is_gone",
        "last_iteration",
    )

    def __init__(
        self,
        request_id: str,
        *,
        tokens: tuple[int, int, int],
        digest: str,
        expected: Expected | None,
        frames: Frames,
        vocabulary: Vocabulary,
        stream: bool,
    ) -> None:
        input_tokens, output_tokens, output_cap_tokens = tokens
        super().__init__(request_id, input_tokens, output_tokens, output_cap_tokens, 0)
        self.expected = expected
        self.arrived_ns = 0
        self.first_iteration = self.last_iteration = 0
        self.is_closed = self.is_gone = False
        self._choice = Choice(digest, len(vocabulary.safe_ids))
        self._frames = frames
        self._plain = frames.plain()
        self._vocabulary = vocabulary
        self._stream = stream
        self._sent = 0
        self._unsent: list[bytes] = []
        self._parts: list[int] = []
        self._waiter: asyncio.Future[None] | None = None

    @property
    def finish_reason(self) -> str:
        """Why it ends: its cap, or before that on its own."""
        return "length" if self.output_tokens >= self.output_cap_tokens else "stop"

    def emit(self) -> None:
        """One more token; the last one closes the answer."""
        number = self._sent
        self._sent = number + 1
        index = self._choice.index(number)
        last = self._sent == self.output_tokens
        if not self._stream:
            self._parts.append(index)
            if not last:
                return
            self._unsent.append(self._whole())
        else:
            word = self._vocabulary.safe_words[index]
            plain = self._plain
            if last or plain is None or number == 0:
                token_id = self._vocabulary.safe_ids[index]
                reason = self.finish_reason if last else None
                self._unsent.append(self._frames.token(number, word, token_id, reason))
            elif plain[1]:
                self._unsent.append(b"%b%08x%b%b%b" % (plain[0], number, plain[1], word, plain[2]))
            else:
                self._unsent.append(plain[0] + word + plain[2])
            if last:
                self._unsent.append(self._frames.closing(self._sent))
        self.is_closed = last
        self._wake()

    def _whole(self) -> bytes:
        vocabulary = self._vocabulary
        words = [vocabulary.safe_words[index] for index in self._parts]
        ids = [vocabulary.safe_ids[index] for index in self._parts]
        return self._frames.whole(words, ids, self.finish_reason)

    def leave(self) -> None:
        """The client has gone: nothing more is to be sent."""
        self.is_gone = True
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    async def take(self) -> bytes:
        """Wait for bytes and take all there are; empty once the client has gone."""
        while not self._unsent and not self.is_gone:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        unsent = self._unsent
        self._unsent = []
        return unsent[0] if len(unsent) == 1 else b"".join(unsent)
