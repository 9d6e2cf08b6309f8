"""A rendezvous by a handler of torch elastic, torch's own or a user's, instead of a coordinator."""
