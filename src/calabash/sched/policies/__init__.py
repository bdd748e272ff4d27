"""Placement policies, one module each behind one small protocol; combinable by weights.

A policy scores nodes for a shape and, for a shared device, chooses the device. It sees the resident arrays and the
shape, nothing else: what fits is not its business (``cluster.fit``), nor is caching (``cluster.engine``). A new policy is a
module that defines ``MAKERS``.
"""

from calabash.sched.cluster.scoring import PlacementPolicy, Scored, Scorer
from calabash.sched.policies.base import Maker, ScorerBase, masked

__all__ = ["Maker", "PlacementPolicy", "Scored", "Scorer", "ScorerBase", "masked"]
