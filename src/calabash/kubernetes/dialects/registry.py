"""All dialects, in the order in which they are asked whether a container speaks theirs."""

from __future__ import annotations

from calabash.kubernetes.dialects import (
    alauda,
    aliyun,
    bitfusion,
    hami,
    kai,
    native,
    nvidia,
    qgpu,
    vcuda,
    volcano,
)
from calabash.kubernetes.dialects.protocol import Asking, Dialect
from calabash.model.errors import CalabashError

# HAMi's come before NVIDIA's, whose resource name they use with more beside it.
DIALECTS: tuple[Dialect, ...] = tuple(
    module.DIALECT for module in (native, hami, nvidia, volcano, qgpu, vcuda, aliyun, alauda, kai, bitfusion)
)


def dialect_of(asking: Asking) -> Dialect | None:
    """In whose words the container asks; None when it asks for no device. Raises CalabashError when in those of two."""
    claimants = [dialect for dialect in DIALECTS if dialect.claims(asking)]
    if not claimants:
        return None
    chosen = claimants[0]
    for other in claimants[1:]:
        named = [name for name in asking.amounts if asking.has(name) and other.names(name)]
        if not named or any(not chosen.names(name) for name in named):
            words = ", ".join(
                sorted(n for n in asking.amounts if asking.has(n) and (chosen.names(n) or other.names(n)))
            )
            raise CalabashError(
                f"devices are asked in the words of {chosen.system} and of {other.system}: {words or other.name}",
                hint="keep the words of one system in one container",
            )
    return chosen


def is_ours_to_translate(resource: str) -> bool:
    """Whether a resource name belongs to a dialect, native or foreign."""
    return any(dialect.names(resource) for dialect in DIALECTS)
