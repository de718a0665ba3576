"""What processes say to each other: messages, the frames they travel in, sockets, the metrics port."""
