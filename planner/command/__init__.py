"""What every command keeps: its options, where results and mistakes go, its exit status."""
