"""The front ends for a Kubernetes cluster: what runs on each node, the planner, admission.

The API server is the only truth. ``dialects`` translates a pod into requests, ``planner`` decides and hands over to a stock
kube-scheduler, ``node`` carries a plan out where the kubelet starts the containers, ``admission`` brings pods into one
form. Nothing here decides what fits: that is ``sched`` and ``sharing``, joined by ``binder``.
"""
