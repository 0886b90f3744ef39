"""Read settings from the places where they are set, and report what is wrong with them.

`section.py` has the base class of every group of settings, `fields.py` walks through all settings of a model,
`sources.py` reads one place where settings are set, `reading.py` puts the places together. The settings
themselves are in `src/reverie/settings.py`.
"""
