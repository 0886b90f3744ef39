"""Settings files of coding agents: what `reverie install` writes, and how it is taken back."""
