"""Warm interpreters: Python processes that have imported torch before their job arrives.

``pool.py`` manages them in the worker. The code that runs inside such an interpreter is in ``workers.inside``.
"""
