"""The programs for a Kubernetes cluster: node plug-in, planner, admission, server, metrics and usage collection.

The state of pods and devices is in the API server. ``dialects`` translates a pod into requests for devices.
``admission`` writes these requests into the pod in one canonical form. ``planner`` chooses devices, and an unmodified
kube-scheduler binds the pod. ``node_plugin`` carries out the plan when the kubelet starts the containers. The rules of
placement are in ``sched`` and ``sharing``, which ``binder`` combines.
"""
