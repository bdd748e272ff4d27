"""Observer of mirrors that records their failures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from calabash.adapters.kube import Kind, SkippedObject


@dataclass(slots=True)
class MirrorFailures:
    """``MirrorObserver`` that records all failures in the order in which they are reported."""

    errors: list[Exception] = field(default_factory=list)
    skipped: list[SkippedObject] = field(default_factory=list)

    def mirror_failed(self, kind: Kind[Any], error: Exception) -> None:
        del kind
        self.errors.append(error)

    def object_skipped(self, skipped: SkippedObject) -> None:
        self.skipped.append(skipped)
