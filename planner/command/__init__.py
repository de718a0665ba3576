"""What all commands share: options, output, exit status."""
