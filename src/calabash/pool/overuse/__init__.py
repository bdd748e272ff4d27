"""Detection of use beyond what was agreed, and its consequences."""
