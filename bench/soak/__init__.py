"""Load test of the whole product with faults: ``python -m bench.soak --minutes 60 --seed 7``, or ``make soak``.

**Actors** use one pool of simulated cards in every way that there is, each through the command line or the API as a user would.
**Faults** are drawn at random from a printed seed: processes killed and stopped, cards broken, a disk that is full. **Judges**
compare, all along and at the end, the product's promises with what the simulated driver, the kernel and the actors saw.
Each difference is a violation; a soak without any ends with 0.

The rules that need no machine (``promises``, ``endings``, ``accounts``, ``shares.Measured``) have tests in ``tests/soak``.
"""
