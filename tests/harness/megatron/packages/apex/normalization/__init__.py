"""Layer norms."""
