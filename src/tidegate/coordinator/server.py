"""The control plane's server: slots of one attempt connect, prove that they know its token, and talk. Driver.

An asyncio loop on a thread of its own moves bytes; what was heard is handed to the coordinator's thread in order.
Whoever does not know the attempt's token (an old worker, a stranger) is refused before anything it says is looked at. In a job
that encrypts, all is said within TLS: whoever speaks anything else is refused before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tidegate.errors import ProtocolViolation
from tidegate.ids import AttemptId, SlotId
from tidegate.shown import shown_error
from tidegate.wire.control import FromSlot, ToSlot, decode_from_slot, encode
from tidegate.wire.framing import HEAD, Received, frames_of
from tidegate.wire.handshake import MAX_HELLO_BYTES, Hello, check_hello, new_challenge, prove

if TYPE_CHECKING:
    from tidegate.wire.certificates import Certificate

log = logging.getLogger("tidegate.control")

HELLO_TIMEOUT_S = 20.0
CLOSE_TIMEOUT_S = 5.0


class ControlEvents(Protocol):
    """Called from the server's thread; must hand on and return at once."""

    def connected(self, slot: SlotId, hello: Hello) -> None: ...
    def said(self, slot: SlotId, message: FromSlot) -> None: ...
    def lost(self, slot: SlotId, reason: str) -> None: ...


class ControlServer:
    """Implements ports.SlotLinks."""

    def __init__(
        self,
        bind: str,
        attempt: AttemptId,
        token: bytes,
        events: ControlEvents,
        certificate: Certificate | None = None,
    ) -> None:
        """`certificate` None: nothing is encrypted."""
        self._attempt = attempt
        self._token = token
        self._events = events
        self._tls = None if certificate is None else certificate.server_context()
        self._numbers = itertools.count()
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._writers: dict[SlotId, asyncio.StreamWriter] = {}  #: of those, the ones that proved who they are
        self._called: set[SlotId] = set()  #: and all that ever have, in this attempt
        self._loop = asyncio.new_event_loop()
        self._listening = socket.create_server((bind, 0))
        self.port: int = self._listening.getsockname()[1]
        self._ready = threading.Event()
        self._failure: BaseException | None = None  #: why the loop did not start
        self._thread = threading.Thread(target=self._run, name=f"tidegate-control-{attempt}", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def send(self, slot: SlotId, message: ToSlot) -> None:
        """:raises Unsendable:"""
        body = encode(message)
        self._call(lambda: self._write(slot, body))

    def close(self) -> None:
        """Every connection ends; workers that are still there leave at once."""
        self._call(self._loop.stop)
        self._thread.join(5)

    def _call(self, action: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:  # the loop is closed: the attempt is over
            log.debug("the control server is closed")

    # -- the loop's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            server = self._loop.run_until_complete(asyncio.start_server(self._accept, sock=self._listening))
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end_all(server))
        self._loop.close()

    async def _end_all(self, server: asyncio.Server) -> None:
        self._loop.remove_reader(self._listening)
        await asyncio.sleep(0)  # what was accepted a moment ago becomes a connection: of a closed server it cannot
        server.close()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._open:
            writer.transport.abort()
        await asyncio.sleep(0)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Not a coroutine: asyncio would forget the socket of one that is canceled before its first step."""
        if self._tls is not None and isinstance(writer.transport, asyncio.ReadTransport):
            writer.transport.pause_reading()  # what comes is TLS's
        self._open[writer] = self._loop.create_task(self._serve(reader, writer))

    def _write(self, slot: SlotId, body: bytes) -> None:
        writer = self._writers.get(slot)
        if writer is not None and not writer.is_closing():
            for frame in frames_of(body, next(self._numbers)):
                writer.write(frame)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        slot: SlotId | None = None
        reason = "the connection was closed"
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                if self._tls is not None:
                    await writer.start_tls(self._tls)
                greeted, hello = await self._greet(reader, writer)
            slot = greeted
            self._events.connected(greeted, hello)
            received = Received()
            while True:
                self._events.said(greeted, decode_from_slot(await _read_message(reader, received)))
        except (TimeoutError, ProtocolViolation) as error:
            reason = str(error) or f"it has not said within {HELLO_TIMEOUT_S:g} s who it is"
            log.warning("a control connection was refused: %s", reason)
        except ssl.SSLError as error:
            reason = f"it does not speak TLS as this attempt does ({error.reason})"
            log.warning("a control connection was refused: %s", reason)
        except (asyncio.IncompleteReadError, OSError):
            pass  # the usual end of a connection; `lost` says it
        except asyncio.CancelledError:
            slot = None  # the server is closing and ends the connection: nobody is lost
            return
        except Exception as error:
            log.exception("a control connection failed unexpectedly")
            reason = f"its connection failed unexpectedly: {shown_error(error)}"
        finally:
            writer.close()
            if slot is not None:
                self._writers.pop(slot, None)
                self._events.lost(slot, reason)
        with contextlib.suppress(OSError):  # of a TLS connection that was never made asyncio says no end
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await writer.wait_closed()
        del self._open[writer]

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[SlotId, Hello]:
        challenge = new_challenge()
        writer.write(challenge)
        hello = check_hello(self._token, challenge, await _read(reader, MAX_HELLO_BYTES))
        if (hello.generation, hello.attempt) != (self._attempt.generation, self._attempt.number):
            raise ProtocolViolation(f"a slot of attempt g{hello.generation}-a{hello.attempt} called {self._attempt}")
        slot = SlotId(hello.layer, hello.index)
        if slot in self._called:  # nor after its connection was lost: two workers would seal with the same keys
            raise ProtocolViolation(f"slot {slot} called twice")
        self._called.add(slot)
        proof = prove(self._token, hello.challenge)
        writer.write(HEAD.pack(len(proof)) + proof)
        self._writers[slot] = writer
        return slot, hello


async def _read(reader: asyncio.StreamReader, limit: int) -> bytes:
    (length,) = HEAD.unpack(await reader.readexactly(HEAD.size))
    if length > limit:
        raise ProtocolViolation(f"a message of {length} bytes was announced; the limit is {limit}")
    return await reader.readexactly(length)


async def _read_message(reader: asyncio.StreamReader, received: Received) -> bytes:
    while True:
        head = await reader.readexactly(HEAD.size)
        message = received.message(head, await reader.readexactly(received.length_of(head)))
        if message is not None:
            return message
