"""Detection of over-use of limits and budgets, and its consequences."""
