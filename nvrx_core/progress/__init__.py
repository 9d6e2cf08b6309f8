"""What a rank has done so far, in memory that its monitor shares."""
