"""One file for each command of the shell, or for a few that belong together."""
