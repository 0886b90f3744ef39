"""The public objects. They only delegate: the work is done in the rooms below."""
