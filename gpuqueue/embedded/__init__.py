"""A private store for one machine, and everything else that ``up`` starts there."""
