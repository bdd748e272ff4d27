"""Routes of the simulated node of a pool: show it, and inject faults."""

from __future__ import annotations

from calabash.adapters.gpu import sim
from calabash.api import endpoints, requests
from calabash.api import simulator as shapes
from calabash.model.access import Action
from calabash.model.errors import CalabashError, Reason
from calabash.platform.handlers.request import Asked, body_of, caller_of, work
from calabash.pool.handlers.context import Context, pool_of
from calabash.transport.web.routing import handles

XIDS_SHOWN = 16


@handles(endpoints.SHOW_SIMULATOR)
async def show_simulator(request: Asked) -> shapes.SimulatedNode:
    return await work(request, _shown, _allowed(request))


@handles(endpoints.INJECT_FAULT)
async def inject_fault(request: Asked) -> shapes.SimulatedNode:
    context = _allowed(request)
    body = requests.decode(await body_of(request), shapes.FaultOrder)

    def change() -> shapes.SimulatedNode:
        if not context.sim:
            raise CalabashError(
                "the cards of this pool are real", reason=Reason.NOT_FOUND, hint="faults are for `calabash up --sim`"
            )
        sim.inject(sim.find_node(context.home, context.sim), body.gpu, body.fault, body.value or None)
        return _shown(context)

    return await work(request, change)


def _allowed(request: Asked) -> Context:
    """Return the context. Raises NOT_PERMITTED unless the principal may shut the pool down."""
    pool_of(request).permission.require(caller_of(request).principal, Action.SHUT_DOWN, "break simulated cards")
    context: Context = request.app.state.context
    return context


def _shown(context: Context) -> shapes.SimulatedNode:
    if not context.sim:
        return shapes.SimulatedNode(name="", driver="", cards=[])
    node = sim.show_node(sim.find_node(context.home, context.sim))
    return shapes.SimulatedNode(name=node.name, driver=node.driver_version, cards=[_card(d) for d in node.devices])


def _card(device: sim.SimDevice) -> shapes.SimulatedCard:
    return shapes.SimulatedCard(
        index=device.index,
        uuid=device.uuid,
        name=device.name,
        memory_mib=device.memory_total_bytes >> 20,
        used_mib=device.used_bytes >> 20,
        busy_s=round(device.busy_ns / 1e9, 3),
        kernels=device.kernel_count,
        lost=device.lost,
        slow_percent=device.slow_permille // 10,
        ecc_double=device.ecc_volatile_double,
        xids=[x.xid for x in device.xids[-XIDS_SHOWN:]],
    )


SIMULATOR = (show_simulator, inject_fault)
