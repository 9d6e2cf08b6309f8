"""A rendezvous by a handler of torch elastic, torch's own or a user's, in the place of a coordinator."""
