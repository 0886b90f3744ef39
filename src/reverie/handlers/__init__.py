"""The work behind each label. A handler reads, thinks, and answers with an outcome; it does not write."""
