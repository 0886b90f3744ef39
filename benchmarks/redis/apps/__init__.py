"""The neighbours' programs: a task that does nothing, and `submit`, which sends it.

Each neighbour has a module of its own, because its worker command imports it. Results are not kept, because
they would slow the neighbour down.
"""
