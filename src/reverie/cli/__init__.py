"""The command line. Commands import what they run when they run, so that help answers at once."""
