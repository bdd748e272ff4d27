"""What turns decisions into grants: who waits in which order, what is decided, what is being carried out, what failed.

What lives here: the binder of one machine, which tells the scheduler what happened and gives its decisions to the
node's agent, and the translation between the scheduler's nouns and the sharing modes' (the scheduler knows no sharing
mode, the sharing modes know no scheduler). What never lives here: who may ask for what, HTTP, journals, device access.
"""
