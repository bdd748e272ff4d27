"""Messages of the kubelet's interfaces, generated from ``proto/``; only ``adapters.kubelet`` imports them."""
