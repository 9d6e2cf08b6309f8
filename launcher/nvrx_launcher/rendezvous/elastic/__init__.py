"""The rendezvous of the coordinator for the agents of torch elastic."""
