"""What each kind of object must be like, given all others: one module for what belongs together.

Each check gets the book as it is, the object as asked for, and as it was (None: new), and gives it completed: what was left
empty is allocated, or stays as it was. It raises CalabashError and changes nothing.
"""
