"""The neighbours' own programs: a task that does nothing, and `submit`, which sends it.

Each is a module of its own because their workers are started by their own commands, which import it. Results
are kept nowhere: no queue is slowed down by what is not asked of it.
"""
