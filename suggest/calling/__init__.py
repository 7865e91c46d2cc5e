"""What both clients are made of: what a call sends and reads, when it is sent again, how a client shows who it is."""
