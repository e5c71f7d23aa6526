"""Formatting of values: tables, columns, colours and JSON.

No module here imports a command. Start reading at ``render.py``.
"""
