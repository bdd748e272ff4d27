"""Translation of tenant networks to custom resources of Kube-OVN."""
