"""Lab: OVN and its hosts in network namespaces of this machine, for trials, for tests and for pools of one machine.

A ``Lab`` consists of a central part (both OVN databases and northd), hosts with Open vSwitch in its userspace datapath, of
which two may be gateway hosts, and the outside world. The databases use Unix sockets; hosts connect to the southbound database
by TLS. All files are in one directory and all namespaces have one prefix; both are removed with the lab. Programs are those of
this machine if they are new enough, otherwise cached packages of Debian 13.
"""
