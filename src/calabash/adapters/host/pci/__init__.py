"""PCI devices, VFIO and virtual functions."""
