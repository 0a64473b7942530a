"""The example of docs/testing.md: three days of a process in virtual time."""

from __future__ import annotations

from datetime import timedelta

from stellwerk.testing import ProcessTest


async def test_E6_a_three_day_process_in_twenty_lines(process_test: ProcessTest) -> None:
    await process_test.deploy("invoice.bpmn")
    invoice = await process_test.start("invoice", {"customer": "Ada"}, business_key="A-17")
    ordered_at = process_test.now

    await invoice.complete("send_invoice", {"sent": True})
    invoice.assert_waiting_at("wait_for_payment")

    assert await process_test.advance_to_next_timer() == ["one_day"]
    assert process_test.now - ordered_at == timedelta(days=1)
    await invoice.complete("remind")

    assert await invoice.advance_to_next_timer() == ["three_days"]
    assert process_test.now - ordered_at == timedelta(days=3)
    assert not await process_test.publish("paid", "A-17")  # nobody waits for it any more

    await invoice.complete_user_task("call", {"promised": "2026-01-10"})
    invoice.assert_ended()
    invoice.assert_visited_in_order("send_invoice", "one_day", "remind", "reminded", "three_days", "handed_over")
    invoice.assert_not_visited("settled")
    invoice.assert_variables(customer="Ada", sent=True, promised="2026-01-10")
