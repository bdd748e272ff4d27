"""Placement policies, one module each, which can be combined by weights.

A policy scores nodes for a shape and chooses the device for a slice. It reads the resident arrays and the shape only.
Feasibility is computed by ``cluster.fit``, and scores are cached by ``cluster.engine``. To add a policy, add a module that
defines ``MAKERS``.
"""

from calabash.sched.cluster.scoring import PlacementPolicy, Scored, Scorer
from calabash.sched.policies.base import Maker, ScorerBase, masked

__all__ = ["Maker", "PlacementPolicy", "Scored", "Scorer", "ScorerBase", "masked"]
