"""Access: who may do what (API keys), and who changed what (the audit log)."""
