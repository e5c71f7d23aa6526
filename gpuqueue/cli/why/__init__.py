"""The parts of the output of ``gpuqueue why``.

Each module turns an explanation into lines, a table or JSON. The command is in ``commands/why.py``.
"""
