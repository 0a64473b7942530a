"""What is accepted as variables can also be pushed, extended, failed, tried again and completed (fault 16)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stellwerk.errors import LimitExceeded
from stellwerk.limits import Limits
from stellwerk.wire.messages import Ack, Extend, Fail, Renewed


def largest(more: int = 0) -> dict[str, str]:
    """Exactly as many bytes of JSON as are accepted, and some more."""
    return {"text": "x" * (Limits().payload_bytes_max - len('{"text":""}') + more)}


async def test_fault_16_the_largest_payload_is_pushed_extended_tried_again_and_completed(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    with pytest.raises(LimitExceeded):
        await world.start(**largest(1))
    instance_id = await world.start(**largest())
    offer = await peer.task()
    assert msgspec.json.decode(offer.variables) == largest()
    await peer.say(Extend(peer.ref(), offer.task_id, offer.fence, 600_000))
    assert isinstance(await peer.answer(offer, peer.refs), Ack)
    (renewed,) = (await peer.next(Renewed)).leases
    assert renewed.lock_remaining_ms > 590_000
    await peer.say(Fail(peer.ref(), offer.task_id, offer.fence, "no", retry_after_ms=0, retries=2))
    assert isinstance(await peer.answer(offer, peer.refs), Ack)
    again = await peer.task()
    assert (again.task_id, msgspec.json.decode(again.variables)) == (offer.task_id, largest())
    assert isinstance(await peer.complete(again, **largest()), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
