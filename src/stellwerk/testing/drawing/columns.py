"""In which column each node of a layered layout stands."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

__all__ = ["columns_of", "spread"]


def columns_of(node_ids: Iterable[str], links: Iterable[tuple[str, str]]) -> dict[str, int]:
    """The column of each node: one more than the last of those before it. Flows that lead back do not count."""
    successors: Mapping[str, list[str]] = defaultdict(list)
    for source, target in links:
        successors[source].append(target)
    order = _depth_first(list(node_ids), successors)
    place = {node_id: index for index, node_id in enumerate(order)}
    ranks = dict.fromkeys(order, 0)
    for node_id in order:
        for target in successors[node_id]:
            if target in place and place[target] > place[node_id]:
                ranks[target] = max(ranks[target], ranks[node_id] + 1)
    return ranks


def spread(node_ids: list[str], linked: set[str], ranks: dict[str, int]) -> None:
    """Nodes without any flow stand side by side, not all in one column."""
    alone = [node_id for node_id in node_ids if node_id not in linked]
    columns = max(math.isqrt(len(alone)), max(ranks.values(), default=0)) + 1
    for place, node_id in enumerate(alone):
        ranks[node_id] = place % columns


def _depth_first(node_ids: list[str], successors: Mapping[str, list[str]]) -> list[str]:
    """Reverse postorder: each node before its successors, as far as there are no circles. Without recursion."""
    wanted = set(node_ids)
    targets = {target for found in successors.values() for target in found}
    seen: set[str] = set()
    finished: list[str] = []
    for root in sorted(node_ids, key=lambda node_id: node_id in targets):
        pending = [(root, False)]
        while pending:
            node_id, is_done = pending.pop()
            if is_done:
                finished.append(node_id)
            elif node_id in wanted and node_id not in seen:
                seen.add(node_id)
                pending.append((node_id, True))
                pending += [(target, False) for target in successors[node_id]]
    return finished[::-1]
