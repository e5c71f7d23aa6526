"""Warm interpreters: Python processes that have imported torch before their job arrives.

``pool.py`` keeps them in the worker. What runs inside such an interpreter is in ``workers.inside``.
"""
