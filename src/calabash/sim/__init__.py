"""Simulator: runs the real scheduler on traces and generated loads with a virtual clock.

It has readers of traces (``openb``, ``trace``), the published placement experiments (``arrivals``, ``churn``), queues with run
times (``queueing``), upper bounds of the allocation (``bound``), a runner for many seeds and reports. It reads and writes only
files that the caller names, and uses no adapter, real clock or real cluster. All results are deterministic by seed.

    runner.run(Experiment(nodes=..., workload=..., policies=("pgb", "fgd"), seeds=range(42, 52)), jobs=2, progress=...)
    report.table(results), report.document(results), report.html(results)
"""
