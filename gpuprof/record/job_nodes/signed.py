"""Messages between the nodes of a job, signed with a secret that the launch gave to each node.

HMAC-SHA256 (RFC 2104) over the sender's rank, the kind of message, its body, and a random number that rank 0 drew for
this recording: a message of another rank, job or recording does not verify. The secret itself is never sent or stored.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Bytes, Characters, Convention


TOKEN = "GPUPROF_TOKEN"
"""Environment variable with the secret, the same on every node."""
LEAST_CHARACTERS: Assumed[Characters] = 16
"""Shortest token."""
LARGEST_MESSAGE_BYTES: Assumed[Bytes] = 4 << 20
"""Largest message. A digest takes less than 1 MB."""
CALL_BYTES: Convention[Bytes] = 16
_MAC_BYTES = hashlib.sha256().digest_size
DIGEST, NOTE, PLAN = b"d", b"n", b"p"
"""Kinds of message: a rank's digest; a sentence that says why it has none; rank 0's step time for the plan."""


class NotVerified(ValueError):
    """Not signed with this token for this recording, or of an invalid size."""


class Message(NamedTuple):
    """What one rank sends."""

    rank: int
    kind: bytes
    """DIGEST, NOTE or PLAN."""
    body: bytes


def key_of(token: str) -> bytes:
    """The key that messages are signed with. Raises ValueError, one line, for a token that is too short."""
    if len(token) < LEAST_CHARACTERS:
        raise ValueError(f"{TOKEN} has fewer than {LEAST_CHARACTERS} characters: use one such as openssl rand -hex 16")
    return hashlib.sha256(b"gpuprof nodes 1\0" + token.encode("utf-8", "surrogateescape")).digest()


def new_call(key: bytes) -> bytes:
    """The message with which rank 0 opens the exchange: a random number, signed."""
    number = os.urandom(CALL_BYTES)
    return _mac(key, b"call", number) + number


def number_of(key: bytes, call: bytes) -> bytes:
    """The random number of a call. Raises NotVerified."""
    mac, number = call[:_MAC_BYTES], call[_MAC_BYTES:]
    if len(number) != CALL_BYTES or not hmac.compare_digest(mac, _mac(key, b"call", number)):
        raise NotVerified("the call of rank 0")
    return number


def seal(key: bytes, number: bytes, message: Message) -> bytes:
    """A message as it is sent. Raises ValueError for one that is too large."""
    if len(message.body) > LARGEST_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(message.body):,} bytes is too large")
    return _mac(key, b"word", _signed(number, message)) + message.kind + message.body


def unseal(key: bytes, number: bytes, rank: int, data: bytes) -> Message:
    """The message that `rank` sent. Raises NotVerified."""
    mac, kind, body = data[:_MAC_BYTES], data[_MAC_BYTES : _MAC_BYTES + 1], data[_MAC_BYTES + 1 :]
    message = Message(rank, kind, body)
    if kind not in (DIGEST, NOTE, PLAN) or len(body) > LARGEST_MESSAGE_BYTES:
        raise NotVerified(f"rank {rank}")
    if not hmac.compare_digest(mac, _mac(key, b"word", _signed(number, message))):
        raise NotVerified(f"rank {rank}")
    return message


def _signed(number: bytes, message: Message) -> bytes:
    """The bytes that are signed. All fields but the last have a fixed length, so no two messages give the same
    bytes."""
    return number + message.rank.to_bytes(8, "big") + message.kind + message.body


def _mac(key: bytes, purpose: bytes, data: bytes) -> bytes:
    return hmac.new(key, purpose + data, hashlib.sha256).digest()
