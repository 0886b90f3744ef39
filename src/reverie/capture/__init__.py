"""Taking in what an agent sees and says."""
