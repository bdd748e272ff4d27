"""Messages of the kubelet's interfaces, generated from ``proto/``; only ``seams.kubelet`` imports them."""
