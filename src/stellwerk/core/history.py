"""Facts as JSON text and back: ``[["TokenEntered", {…}], …]``, one array for each step; and snapshots of the state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import msgspec

from stellwerk.core.facts import Fact
from stellwerk.core.instance import InstanceState

__all__ = ["decode_facts", "decode_state", "encode_facts", "encode_state"]

_encoder = msgspec.json.Encoder()
_state_decoder = msgspec.json.Decoder(InstanceState)
_step_decoder = msgspec.json.Decoder(list[tuple[str, msgspec.Raw]])
_fact_decoders: dict[str, msgspec.json.Decoder[Fact]] = {
    fact.__name__: msgspec.json.Decoder(fact) for fact in get_args(Fact)
}


def encode_facts(facts: Iterable[Fact]) -> bytes:
    return _encoder.encode([(type(fact).__name__, fact) for fact in facts])


def decode_facts(text: bytes | str) -> tuple[Fact, ...]:
    """:raises KeyError: for a fact that this version does not know (a database of a later version)."""
    return tuple(_fact_decoders[name].decode(body) for name, body in _step_decoder.decode(text))


def encode_state(state: InstanceState) -> bytes:
    """The snapshot of a state, JSON text."""
    return _encoder.encode(state)


def decode_state(text: bytes | str) -> InstanceState:
    """:raises msgspec.ValidationError: when the snapshot is from a version with another shape of the state."""
    return _state_decoder.decode(text)
