"""The filters of kube-scheduler for pods whose constraints can be checked without it.

``checked_pod`` decides whether a pod can be checked and reads its constraints, ``node`` and ``node_room`` check them
against a node and the pods on it, ``anti_affinity`` keeps the terms of pods that keep others away, and ``cluster`` has
all nodes and pods. The results are those of the filters of kube-scheduler 1.36 with its default configuration.

Pods and nodes are read as the API server stores them, after its defaults were set. They are untrusted.
"""
