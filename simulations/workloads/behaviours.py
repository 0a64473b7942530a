"""What handlers usually do: some are quick, some fail technically now and then, and in the end all of them succeed."""

from __future__ import annotations

from simulations.kernel.draws import between, chance, integer
from simulations.plans.plan import InstanceSpec
from simulations.workloads.base import Behaviour, Call, Failed, Raised, Returned

__all__ = ["FAILING_ATTEMPTS_MAX", "QUICK", "failed", "ordinary", "seconds_of"]

QUICK = (0.02, 0.4)
FAILING_ATTEMPTS_MAX = 2
"""Later attempts never fail by `ordinary`. Fewer than the retries of every model here, so that none runs out of them:
what an attempt costs is one retry at most, and an attempt whose lease is lost costs none."""

_STYLES = 4


def seconds_of(spec: InstanceSpec, call: Call, limits: tuple[float, float]) -> float:
    return between(spec.seed, *limits, "seconds", call.element, call.attempt)


def failed(spec: InstanceSpec, call: Call) -> Failed:
    """One of the ways in which handlers fail without a say in how many attempts are left."""
    message = f"attempt {call.attempt} at {call.element} was to fail"
    style = integer(spec.seed, _STYLES, "style", call.element, call.attempt)
    if style == 0:
        return Failed(message, is_plain=True)
    if style == 1:
        return Failed(message)
    return Failed(message, retry_after=between(spec.seed, 0.0, 0.8, "retry_after", call.element, call.attempt))


def ordinary(
    spec: InstanceSpec,
    call: Call,
    *,
    seconds: tuple[float, float] = QUICK,
    failing: float = 0.15,
    crashing: float = 0.03,
    then: Returned | Raised | None = None,
) -> Behaviour:
    """Works for a while; each of the first attempts fails with chance `failing`; otherwise `then` (None: returns)."""
    ends: Returned | Raised | Failed = then or Returned()
    if call.attempt <= FAILING_ATTEMPTS_MAX and chance(spec.seed, failing, "fails", call.element, call.attempt):
        ends = failed(spec, call)
    crash = call.attempt == 1 and chance(spec.seed, crashing, "crash", call.element)
    return Behaviour(seconds=seconds_of(spec, call, seconds), then=ends, crash=crash)
