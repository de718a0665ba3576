"""What all commands share: common options, output of results and mistakes, exit status."""
