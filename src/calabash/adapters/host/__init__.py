"""The host's kernel: processes and their identity, leases (file locks), peer credentials, durable files, disk space.

What lives here: narrow questions to Linux through /proc, flock, pidfd and fsync. A process is named by its pid
*and* its start time, because pids are used again. Nothing here knows of devices or allocations.
"""
