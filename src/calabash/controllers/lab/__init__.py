"""Lab: OVN and its hosts in network namespaces of this machine, for trials, for tests and for pools of one machine.

A ``Lab`` consists of a *central part* (both OVN databases and northd), *hosts* with Open vSwitch in its userspace
datapath, some of which may be gateway hosts, and the *world*, which stands for the provider's network and the Internet.
Local clients reach the databases by Unix sockets; hosts connect to the southbound database by TLS. All files of a lab
are in one directory and the names of all its namespaces begin with one prefix, so that both can be removed with the
lab. The programs are those of this machine if they are new enough, otherwise cached packages of Debian 13.
"""
