"""The command line. A command imports its code only when it runs, so that help answers at once."""
