"""The simulator: traces and loads on a virtual clock, driving the real scheduler unchanged.

What lives here: readers of traces (``openb``, ``trace``), the published experiments (``arrivals``, ``churn``), queues with
run times (``queueing``), upper bounds (``bound``), and the runner and reports around them.
It may read and write plain files that the caller names; it never touches a seam, a clock or a real cluster. Everything is
deterministic by seed.

    runner.run(Experiment(nodes=..., workload=..., policies=("pgb", "fgd"), seeds=range(42, 52)), jobs=2, progress=...)
    report.table(results), report.document(results), report.html(results)
"""
