"""Admission webhooks for pods that ask for devices: normalize the request of a pod and refuse invalid pods.

``mutate`` changes a pod, ``validate`` refuses one, ``service`` and ``run`` are the HTTPS server that API servers call,
and ``webhooks`` builds the webhook configurations. The meaning of other systems' resource names is in ``dialects``;
decisions about capacity are in ``planner``.
"""
