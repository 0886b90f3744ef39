"""Reading settings from where they are set, and saying what is wrong with them.

`section.py` is what every group of settings is made of, `fields.py` walks through all settings of a model,
`sources.py` reads one place where settings are set, `reading.py` puts the places together. Which settings
there are is not known here: see `src/reverie/settings.py`.
"""
