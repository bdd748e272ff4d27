"""Access to the kernel: processes, file locks, control groups, mounts, PCI devices, durable files and disk space.

The modules use /proc, flock, pidfd, fsync and sysfs. A process is named by its pid and its start time, because pids are
used again. Nothing here knows of devices to allocate or of allocations.
"""
