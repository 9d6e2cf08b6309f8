"""What the script imports relative to its package."""

SCRIPT = "pretrain_gpt.py"
