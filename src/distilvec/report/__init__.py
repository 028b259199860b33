"""What people read: terminal tables and the model card."""
