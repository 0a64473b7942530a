"""Which seed becomes a run of which kind."""

from __future__ import annotations

from simulations.kernel.draws import integer
from simulations.tools.sources import Mode, Size
from stellwerk.cli.mistakes import Mistake
from stellwerk.values import frozen

__all__ = ["Mix", "mix_of"]

_SIZES: tuple[Size, ...] = ("small", "large")
_MODES: tuple[Mode, ...] = ("all", "swarm")


@frozen
class Mix:
    """Weights. A seed is of the same kind each time, as long as the weights are the same."""

    sizes: tuple[int, int]
    modes: tuple[int, int]

    def kind(self, seed: int) -> tuple[Size, Mode]:
        size = _SIZES[0] if integer(seed, sum(self.sizes), "mix", "size") < self.sizes[0] else _SIZES[1]
        mode = _MODES[0] if integer(seed, sum(self.modes), "mix", "mode") < self.modes[0] else _MODES[1]
        return size, mode


def mix_of(text: str) -> Mix:
    """``small=4,large=1,all=1,swarm=1``; what is not named has the weight 0, and if neither size or neither mode is
    named, both have 1.

    :raises Mistake: it reads otherwise.
    """
    weights = dict.fromkeys((*_SIZES, *_MODES), 0)
    for part in filter(None, text.replace(" ", "").split(",")):
        name, _, weight = part.partition("=")
        if name not in weights or not (weight or "1").isdecimal():
            raise Mistake(f"--mix {text}: {part} is no weight: small, large, all, swarm, as in small=4")
        weights[name] = int(weight or "1")
    sizes = (weights["small"], weights["large"])
    modes = (weights["all"], weights["swarm"])
    return Mix(sizes if any(sizes) else (1, 1), modes if any(modes) else (1, 1))
