"""Front ends for a Kubernetes cluster: node plugin, planner, admission, server, metrics and usage.

All state is in the API server. ``dialects`` translates a pod into requests, ``admission`` writes them into the pod in one
form, ``planner`` decides and works through a stock kube-scheduler, and ``node_plugin`` carries out a plan when the kubelet
starts the containers. Placement rules are in ``sched`` and ``sharing``, joined by ``binder``.
"""
