"""`reverie doctor`: what is wrong with an installation, and what to type."""
