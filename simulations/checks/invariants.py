"""What always holds: the names under which violations are reported, and what they mean.

Where `consistency` is named, those rules are the engine's own; E is about versions where other engines have epochs.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["INVARIANTS"]

INVARIANTS: Mapping[str, str] = {
    # leases
    "L1": "One holder: a task is leased only while READY, to whom asked for it, and moves only between the sessions of "
    "one worker process. No lease is handed to two workers.",
    "L2": "Fencing: each lease has a greater fence than any before, also over crashes, and not behind the store's "
    "clock (rule 11). Only the current fence extends, releases or ends a lease.",
    "L3": "A lease that is given or extended is live and within the longest duration; one that ran out is not revived.",
    "L4": "LOCKED becomes READY by a reported failure, by a release (by the worker, an unconfirmed delivery, a hello "
    "or report without it), or by expiry, and by expiry never before its end on the store's clock. A session gives "
    "back only what is its own (rule 17).",
    "L5": "A task ends by its process, or by the holder's own request within the lease.",
    "L6": "The times in which two workers take a task for their own do not overlap, within the drift of their clocks, "
    "when the first lease was ended by expiry.",
    "L7": "A single-try task whose handler may have begun is not offered again after its lock ran out; every other one "
    "is, until its limit. No lock that ran out is forgotten.",
    "L8": "No worker gets a task of a topic that it did not ask for.",
    # finality and durability
    "F1": "COMPLETED and CANCELLED tasks never change; FAILED and EXPIRED ones only by resolving an open incident.",
    "F2": "Final states are written by the instance's own step (rule 8).",
    "F3": "Instances that have ended never change.",
    "D1": "What was acknowledged is durable: it is in the rows then and for ever.",
    "A1": "At most one lease of a task is acknowledged as completed, and nothing after it.",
    "A2": "Each request gets at most one answer, and no answer comes to none.",
    "I1": "A request that is repeated gets the same answer and changes nothing, on any node, after any crash and after "
    "later attempts. How a lease ended is recorded once. One start request, one instance.",
    "I2": "What is refused changes nothing: every change belongs to a request that was granted in its commit.",
    "I3": "What could be done is not refused: a final request is answered lease_lost or the like only when its lease "
    "is over.",
    "W1": "No lost update: each write rests on the row that the last commit left.",
    "T1": "The store's lease clock never falls, and commits are told in order.",
    # instances
    "E1": "Versions grow by one with each step.",
    "E2": "Each step was decided on the newest version.",
    "C1": "Each token is in one place, and moves where an arrow of the model leads; parallel gateways take one from "
    "each incoming flow and give one to each outgoing one. The rows are the index of the history.",
    "C2": "Histories only grow; activities begin once; snapshots, status and rows are what the history folds to.",
    "C3": "An instance that ends leaves nothing open, and one that runs waits for something that can come.",
    # retries
    "R1": "An accepted failure costs one retry, or what the worker says; business errors cost none.",
    "R2": "Expiry, release, reconnecting, repetition and crashes cost no retry; each expiry is counted once.",
    "R3": "FAILED only without retries left (or at the worker's word, or at the limit of expiries); no offer before "
    "the next attempt is due.",
    # sagas, timers, messages
    "S1": "Compensation handlers run exactly for what was completed, once, in reverse order, one after the other, and "
    "not before the leased siblings are drained (rule 15).",
    "S2": "A failed attempt does not start compensation while retries are left.",
    "M1": "A message reaches at most one receiver, with its name and key, and is lost to none that waits.",
    "M2": "A timer fires once, and not before it is due by the clock of the node that fires it.",
    "K1": "A worker never takes a lease for longer its own than the store ever gave it, and lets go what is revoked, "
    "and at its deadline what is not renewed.",
    "K2": "No handler begins on a lease whose end has passed on the worker's own clock.",
    "H1": "A worker reports every lease that it takes for its own, until its final request is answered (rule 16).",
    "H2": "A worker repeats in its next session what was not answered in the one before.",
    # progress
    "P0": "No unexpected exception.",
    "P1": "No livelock.",
    "P2": "No deadlock.",
    "P3": "Nothing is left over: when every instance has ended, no node holds or doubts a lease any more, or keeps "
    "room for one.",
    "P4": "Nothing outside of the simulation is reached for.",
    "V1": "Once faults are over, every instance ends or waits for an operator: no progress for a minute is a failure, "
    "and so is no end for an hour.",
    "V2": "The same while a node or workers are dead for ever.",
    "V3": "No READY task waits long while a worker that could take it is idle.",
}
