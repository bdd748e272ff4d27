"""Queues: the queue tree, fair shares, the order of queues and owners, gangs, and the registry of requests.

Modules:

* ``spec``, ``hierarchy``: the queues as configured, and the tree that they form;
* ``use``, ``tree``: amounts used and waiting per queue; limits, guaranteed and fair shares, pressure;
* ``fairshare``: division of the capacity among the queues;
* ``pressure_heap``: selection of the queue with the least pressure;
* ``owner_order``: order of the owners within one queue;
* ``gang``, ``registry``: gangs, and the gang of every request;
* ``unit_table``: columns over everything that runs;
* ``reservation``: the reservation of a blocked gang.

The package knows no devices and no nodes, and makes no decisions.
"""
